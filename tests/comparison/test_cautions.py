"""Each warning is given where it should be, and nowhere else."""

from io import StringIO

import pytest
from made_up import MACHINE, MadeUp, comparison, made_up_turns
from rich.console import Console

from common.platform.machine import num_cores
from comparison.plan.options import CompareConfig
from comparison.run_maker import prepare


def warnings(folder, make=lambda job: MadeUp(), **options):
    return comparison(folder, make, **{"repeats": 5, **options}).warnings


def steady(job, factor=1.0, **more):
    return MadeUp(speed=1000 * factor * (1 + 0.002 * ((job.round * 3) % 5)), **more)


def test_a_steady_machine_gives_no_warning(tmp_path):
    assert warnings(tmp_path, steady) == []


@pytest.mark.parametrize(("between", "count"), [(1.0, 0), (3.0, 2)])
def test_work_in_no_speed_is_reported(tmp_path, between, count):
    phases = {"imports": 2.0, "data": 0.0, "build": 1.0, "training": 4.0, "evaluation": 1.0, "waiting": 0.0}
    wall = MadeUp().process_seconds - 0.5
    phases |= {"between": between, "rest": wall - sum(phases.values()) - between}
    found = warnings(tmp_path, lambda job: steady(job, changes={"phase_seconds": phases}), implementations=["tf", "pt"])
    assert len(found) == count
    for line in found:
        assert "38% of the time of its epochs is in neither training nor evaluation, and not in any speed" in line

    def make(job):
        return steady(job, changes={"phase_seconds": phases} if job.implementation == "pt" else {})

    first, other = comparison(tmp_path / "one", make, implementations=["tf", "pt"], repeats=5).rows
    assert (other.ratio is None) == (count > 0) and first.status == other.status == "ok"
    note = "no ratio is given: 38% of the time of its epochs is in neither training nor evaluation, 0% of TensorFlow's"
    assert (note in (other.note or "")) == (count > 0)


def test_one_round_is_said_to_be_one(tmp_path):
    (line,) = warnings(tmp_path, repeats=1)
    assert line.startswith("one round only")


def test_other_load(tmp_path):
    def make(job):
        return steady(job, other_load=0.4 if (job.implementation, job.round) == ("ptl", 3) else 0.02)

    (line,) = warnings(tmp_path / "retake", make)
    assert line == (
        "1 of 5 rounds was disturbed: other programs used up to 40% of the cores (Lightning, seed 0, round 3); they are"
        " left out: speeds and ratios are from the other 4"
    )
    (line,) = warnings(tmp_path / "keep", make, disturbed="keep")
    assert line.endswith("(Lightning, seed 0, round 3); they still count, because of --disturbed keep")


def test_few_turns_say_nothing_of_a_load_that_a_whole_training_had(tmp_path):
    def make(job):
        disturbed = (job.implementation, job.round) == ("ptl", 3)
        return steady(job, other_load=0.4 if disturbed else 0.02, turns=made_up_turns([1000.0], loads=[0.03]))

    (line,) = warnings(tmp_path, make)
    assert "other programs used up to 40% of the cores (Lightning, seed 0, round 3)" in line


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_no_difference_is_no_reason_to_warn(tmp_path, factor):
    def make(job):
        return MadeUp(speed=1000 * (factor if job.implementation == "pt" else 1) * (1 + 0.03 * (-1) ** job.round))

    assert warnings(tmp_path, make) == []


def test_more_threads_than_cores(tmp_path):
    found = warnings(tmp_path, steady, devices=1, threads_per_device=MACHINE.cores + 1)
    assert len(found) == 3 and all("wait for each other" in line for line in found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": 1024}, f"1024 x 1 threads on {num_cores()} cores wait for each other; use at most"),
        ({"threads_per_device": 1024}, f"1 x 1024 threads on {num_cores()} cores wait for each other; --threads-per"),
        ({"sweep": ["devices=1,1024"]}, f"note: 1024 x 1 threads on {num_cores()} cores"),
        ({}, ""),
    ],
    ids=str,
)
def test_too_many_threads_are_said_before_the_runs(tmp_path, options, said):
    output = StringIO()
    given = {"output_dir": tmp_path, "implementations": ["pt"], "accelerator": "cpu", **options}
    prepare(CompareConfig(**given), Console(file=output))
    assert said in output.getvalue() and bool(said) == bool(output.getvalue())


def test_a_machine_versions_or_code_that_changed(tmp_path):
    other = MACHINE.model_copy(update={"cores": MACHINE.cores + 1})
    for changes, words in (
        ({"machine": other}, "not all runs are from the same machine"),
        (
            {"versions": {"python": "3.11.0", "made-up": "1.1"}},
            "TensorFlow: not all runs used the same made-up version: 1.0 and 1.1",
        ),
        (
            {"git": {"commit": "b" * 40, "dirty": False}},
            "the code changed between runs: commits aaaaaaaaaaaa and bbbbbb",
        ),
        ({"code_sha256": "1" * 64}, "uncommitted changes at commit aaaaaaaaaaaa"),
    ):
        late = {4: changes, 5: changes}
        found = warnings(tmp_path / words[:8], lambda job, late=late: steady(job, changes=late.get(job.round)))
        assert any(words in line for line in found), found


def test_rows_whose_steps_were_not_audited(tmp_path):
    (line,) = warnings(tmp_path / "a", lambda job: steady(job, audited=job.implementation != "pt"))
    assert line == "PyTorch: no step of its timed runs was audited: there was no audit, or it failed"
    (line,) = warnings(tmp_path / "b", steady, verify="never")
    assert line.startswith("no proof that the rows train identically (--verify never)")


def test_rows_that_did_not_fit_into_memory_together(tmp_path):
    (line,) = warnings(tmp_path, lambda job: steady(job, group=2 if job.implementation == "ptl" else 1))
    assert line.startswith("in 5 of 5 rounds the rows did not fit into memory together")
    assert "each with the first row: TensorFlow, PyTorch; then Lightning; rows of different groups" in line


def test_rounds_that_were_finished_later(tmp_path):
    late = ("ptl", 5)
    (line,) = warnings(tmp_path, lambda job: steady(job, session=2 if (job.implementation, job.round) == late else 1))
    assert line.startswith("1 of 5 rounds were finished later (--resume): their runs took place at different times")


def test_a_limit_of_the_container(tmp_path):
    (line,) = warnings(tmp_path, lambda job: steady(job, throttled=0.12 if job.implementation == "tf" else 0.0))
    assert line.startswith("TensorFlow: this container's CPU limit paused it in 12% of the scheduler")
