"""Any damage to the files of a comparison: a damaged run counts as failed, and the other runs are shown."""

import pytest
from fuzzing import damaged, how_many, line_or_result, try_out
from hypothesis import strategies as st
from made_up import comparison
from test_integrity import seal

from comparison.measure.summary import find_runs
from comparison.plan.request import Request
from comparison.run.program import RECORD_FILE

FILES = ("config.json", "metrics.jsonl", "predictions.safetensors", "result.json", RECORD_FILE)


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "r"
    comparison(folder, implementations=["tf", "pt"], verify="never")
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
def test_what_was_asked_for(made, cases):
    path = made / "comparison.json"
    whole = path.read_bytes()

    def check(content):
        path.write_bytes(content)
        with line_or_result():
            request = Request.read(made, "--report-only")
            find_runs(made, request)

    try_out(cases, check, damaged(whole))
