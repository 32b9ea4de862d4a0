"""Any damage to the files of a comparison: a damaged run counts as failed, and the other runs are shown."""

import json
import os
import re

import pytest
from fuzzing import QUICK, damaged, edited, how_many, line_or_result, try_out
from hypothesis import strategies as st
from made_up import comparison
from test_integrity import seal

from common.platform.errors import UserError
from common.platform.files import lock_file
from common.record.predictions import PREDICTIONS_FILE
from comparison.measure.frames import epochs_frame, rows_frame, runs_frame, turns_frame
from comparison.measure.summary import find_runs, summarise
from comparison.plan.request import LOCK_FILE, Request, take
from comparison.run.program import RECORD_FILE
from comparison.run.store import log_end
from comparison.show.export import to_markdown
from comparison.show.report.gallery import find_mistakes
from comparison.show.report.page import table_charts

UNSHOWN = {"\x1b", "\u202e"}  # control characters
FILES = ("config.json", "metrics.jsonl", "predictions.safetensors", "result.json", RECORD_FILE)


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "r"
    comparison(folder, implementations=["tf", "pt"], verify="never", disturbed="keep")
    for path in folder.glob(f"runs/**/{RECORD_FILE}"):
        seal(path.parent)
    return folder


@how_many
def test_files_of_a_run(made, cases):
    run_dir = made / "runs" / "seed-0" / "round-1" / "pt"
    contents = {name: (run_dir / name).read_bytes() for name in FILES}
    request = Request.read(made, "--report-only")

    def check(name, data):
        content = data.draw(damaged(contents[name]))
        (run_dir / name).write_bytes(content)
        try:
            runs, missing = find_runs(made, request)
        finally:
            (run_dir / name).write_bytes(contents[name])
        other, run = runs
        assert other.result and not missing
        if run.result is None:
            assert run.record.failure
        else:  # the digest does not cover run.json: there, spaces and some digits may differ
            assert content == contents[name] or name == RECORD_FILE

    try_out(cases, check, st.sampled_from(FILES), st.data())


@how_many
def test_files_of_a_run_that_somebody_has_edited_and_sealed(made, cases):
    """Whatever passes the digest is a failed run, or can be shown, on the terminal and in Markdown as plain text."""
    run_dir = made / "runs" / "seed-0" / "round-1" / "pt"
    contents = {name: (run_dir / name).read_bytes() for name in FILES}
    request = Request.read(made, "--report-only")

    def check(name, data):
        content = data.draw(damaged(contents[name]) if name == PREDICTIONS_FILE else edited(contents[name]))
        (run_dir / name).write_bytes(content)
        try:
            if name != RECORD_FILE:
                seal(run_dir)
            runs, missing = find_runs(made, request)
            summary = summarise(made, request, runs, len(missing))
            assert runs[0].result and not missing
            if cases > QUICK:  # pandas and Altair take their time
                assert not UNSHOWN & set(to_markdown(summary))
                for frame in (
                    rows_frame(summary.rows),
                    runs_frame(summary),
                    epochs_frame(summary),
                    turns_frame(summary),
                ):
                    assert not UNSHOWN & set(frame.to_csv())
                for table in summary.tables:
                    find_mistakes(table)
                    assert list(table_charts(table))
        finally:
            for changed in (name, RECORD_FILE):
                (run_dir / changed).write_bytes(contents[changed])

    try_out(min(cases, 2_000), check, st.sampled_from(FILES), st.data())  # with all tables, a third of a second each


def test_a_name_that_is_too_long_for_a_folder_is_that_of_no_run(made):
    request = Request.read(made, "--report-only")
    options = request.options.model_copy(update={"implementations": ["tf", "x" * 10_000]})
    runs, missing = find_runs(made, request.model_copy(update={"options": options}))
    assert [run.record.implementation for run in runs] == ["tf"]
    assert [job.implementation for job in missing] == ["x" * 10_000]


@how_many
def test_what_was_asked_for(made, cases):
    path = made / "comparison.json"
    whole = path.read_bytes()

    def check(content):
        path.write_bytes(content)
        with line_or_result():
            request = Request.read(made, "--report-only")
            find_runs(made, request)

    try_out(cases, check, st.one_of(damaged(whole), edited(whole)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"peak_memory_bytes": 10**400}, "result.json: not valid: peak_memory_bytes: Input should be less than"),
        ({"device_peak_memory_bytes": 2**63}, "result.json: not valid: device_peak_memory_bytes: "),
        ({"class_names": [f"class {number}" for number in range(20_000)]}, "result.json: not valid: class_names: "),
        ({"class_names": ["a", "b"]}, "predictions.safetensors: has class 9, and there are only 2 classes, from 0"),
        ({"class_names": ["a\x1b", *"bcdefghij"]}, "result.json: not valid: class_names: "),
        ({"\x1b[31m": 1}, "result.json: not valid: \\x1b[31m: Extra inputs are not permitted"),
    ],
)
def test_numbers_and_names_that_cannot_be_are_a_failed_run(made, changes, told):
    run_dir = made / "runs" / "seed-0" / "round-1" / "pt"
    path = run_dir / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    seal(run_dir)
    (other, failed), missing = find_runs(made, Request.read(made, "--report-only"))
    assert other.result and failed.result is None and not missing
    assert failed.record.failure.startswith(f"{run_dir}/{told}")


@pytest.fixture
def asked(tmp_path):
    """A comparison's folder, in which nothing was run yet."""
    comparison(tmp_path / "r", only=lambda job: False, implementations=["tf", "pt"], verify="never")
    return tmp_path / "r"


LINKS = [(LOCK_FILE, "is a link to another file"), ("figures", "is a link to another folder")]


@pytest.mark.parametrize(("name", "told"), LINKS)
def test_nothing_outside_the_folder_is_written_or_removed(asked, tmp_path, name, told):
    (tmp_path / "photos").mkdir()
    mine = tmp_path / "photos" / "cat.png"
    mine.write_text("mine")
    (asked / name).symlink_to(mine if name == LOCK_FILE else mine.parent)
    with pytest.raises(UserError, match=f"^--report-only {asked}: .*{told}"):
        take(asked, "--report-only")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("may_write", [True, False])
def test_a_folder_has_one_program_at_work_whoever_made_its_lock(asked, monkeypatch, may_write):
    take(asked, "--report-only")
    really_open = open

    def opened(path, mode="r", **options):
        if not may_write and mode != "rb":
            raise PermissionError(13, "Permission denied", path)
        return really_open(path, mode, **options)

    monkeypatch.setattr("builtins.open", opened)
    with pytest.raises(UserError, match=rf"another compare.py is at work there \(process {os.getpid()} on "):
        take(asked, "--report-only")


def test_a_name_of_an_implementation_is_no_path(asked):
    path = asked / "comparison.json"
    path.write_text(path.read_text().replace('"pt"', '"../../pt"'))
    with pytest.raises(UserError, match="comparison.json: not valid: options.implementations.1: "):
        Request.read(asked, "--report-only")


def test_a_pipe_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / LOCK_FILE)
    with pytest.raises(OSError, match="not a regular file"):
        lock_file(tmp_path / LOCK_FILE, wait=True)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def endless(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def huge(path):
    os.truncate(path, 2**42)


@pytest.mark.parametrize("change", [pipe, endless, huge])
@pytest.mark.parametrize("name", FILES)
def test_what_never_ends_is_a_failed_run(made, name, change):
    run_dir = made / "runs" / "seed-0" / "round-1" / "pt"
    change(run_dir / name)
    (other, failed), missing = find_runs(made, Request.read(made, "--report-only"))
    assert other.result and failed.result is None and not missing
    assert re.search(f"{name}: .*(not a regular file|has (more than )?[0-9,]+ bytes)", failed.record.failure)


@pytest.mark.parametrize("change", [pipe, endless, huge])
def test_a_request_that_never_ends_is_refused_in_a_line(asked, change):
    change(asked / "comparison.json")
    with pytest.raises(UserError, match=r"^--report-only .*comparison.json: cannot be read: (not a|has more)"):
        Request.read(asked, "--report-only")


def test_a_log_that_is_a_link_is_not_shown(tmp_path):
    (tmp_path / "secret").write_text("my secret\n")
    log = tmp_path / "log.txt"
    log.symlink_to(tmp_path / "secret")
    assert log_end(log, 5) == ["log.txt cannot be read: is a link to another file"]
    log.unlink()
    log.write_bytes(b"x" * 2**20 + b"\n\n \x1b[31m\tred\xff\n")
    assert log_end(log, 1) == [" \\x1b[31m  red\ufffd"]
