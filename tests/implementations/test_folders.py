"""Folders that a run can't use: it prints one line and leaves no partial result, and a second try works."""

import pytest
from conftest import CPU, IMPLEMENTATIONS, program_of, remount, run, train

from common.record.results import read_step_losses

SLOW = pytest.mark.slow
SHORT = (*CPU, "--train-size", 200, "--epochs", 2, "--devices", 2)
PAGE = 4096
# The files of a run, in the order in which they are completed.
FILES = ("config.json", "metrics.jsonl", "predictions.safetensors", "model.safetensors", "result.json")


def program(implementation, *options):
    return *program_of(implementation), *SHORT, *options


def own_line(done, implementation):
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(f"python -m {implementation}_impl: ")]
    assert "Traceback" not in done.stderr and "Errno" not in line
    return line


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that returns the folder of an undisturbed run of an implementation."""
    made = {}

    def make(implementation):
        if implementation not in made:
            made[implementation] = train(implementation, tmp_path_factory.mktemp(implementation) / "r", *SHORT)
        return made[implementation]

    return make


@pytest.mark.parametrize(
    ("implementation", "files"),
    [("pt", FILES[1:2]), *(pytest.param(name, FILES, marks=SLOW) for name in IMPLEMENTATIONS)],
)
def test_without_space_the_file_is_named(small_disk, whole, implementation, files):
    """For each of these files of a run, the disk has room only for the files before it."""
    run_dir = whole(implementation)
    assert {path.name for path in run_dir.iterdir()} == set(FILES)
    pages = 0
    for name in FILES:
        room = (pages + 1) * PAGE
        pages += -((run_dir / name).stat().st_size // -PAGE)
        if name not in files:
            continue
        disk = small_disk(room)
        (disk / "other").write_bytes(bytes(PAGE))
        line = own_line(run(*program(implementation, "--run-dir", disk / "r"), expect=1), implementation)
        assert f"error: {disk / 'r' / name} cannot be written: " in line and "No space left on device" in line
        assert not (disk / "r" / "result.json").exists() and not list((disk / "r").glob(".*"))
        remount(disk, "size=100M")
        again = train(implementation, disk / "again", *SHORT)
        assert read_step_losses(again) == read_step_losses(run_dir)


@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_folder_that_nobody_may_write_to_is_refused_at_once(small_disk, implementation):
    disk = small_disk(2**20)
    remount(disk, "ro")
    line = own_line(run(*program(implementation, "--run-dir", disk / "r"), expect=2), implementation)
    assert line == f"python -m {implementation}_impl: error: --run-dir {disk / 'r'}: Read-only file system"
    remount(disk, "rw")
    train(implementation, disk / "r", *SHORT, "--dry-run", "true")
