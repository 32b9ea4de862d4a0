"""Folders that a run can't use: it prints one line and leaves no partial result, and a second try works."""

import pytest
from conftest import CPU, remount, run_program, train

from common.record.results import read_step_losses

SHORT = (*CPU, "--train-size", 200, "--epochs", 2, "--devices", 2)
PAGE = 4096
# The files of a run, in the order in which they are completed.
FILES = ("config.json", "metrics.jsonl", "predictions.safetensors", "model.safetensors", "result.json")


def own_line(implementation, *options, expect):
    done = run_program(implementation, *SHORT, *options, expect=expect)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(f"python -m {implementation}_impl: ")]
    assert "Traceback" not in done.stderr and "Errno" not in line
    return line


@pytest.mark.quick("pt-files0")
@pytest.mark.parametrize(("implementation", "files"), [("pt", FILES[1:2]), ("tf", FILES[1:2]), ("pt", FILES[3:])])
def test_without_space_the_file_is_named(small_disk, tmp_path, implementation, files):
    """For each of these files of a run, the disk has room only for the files before it."""
    whole = train(implementation, tmp_path / "whole", *SHORT)
    pages = [-((whole / name).stat().st_size // -PAGE) for name in FILES]
    for name in files:
        disk = small_disk(PAGE * (1 + sum(pages[: FILES.index(name)])))
        (disk / "other").write_bytes(bytes(PAGE))
        line = own_line(implementation, "--run-dir", disk / "r", expect=1)
        assert f"error: {disk / 'r' / name} cannot be written: " in line and "No space left on device" in line
        assert not (disk / "r" / "result.json").exists() and not list((disk / "r").glob(".*"))
        remount(disk, "size=100M")
        again = train(implementation, disk / "again", *SHORT)
        assert read_step_losses(again) == read_step_losses(whole)


def test_a_folder_that_nobody_may_write_to_is_refused_at_once(small_disk):
    disk = small_disk(2**20)
    remount(disk, "ro")
    line = own_line("pt", "--run-dir", disk / "r", expect=2)
    assert line == f"python -m pt_impl: error: --run-dir {disk / 'r'}: Read-only file system"
    remount(disk, "rw")
    train("pt", disk / "r", *SHORT, "--dry-run", "true")
