"""Each warning is given where it should be, and nowhere else."""

from io import StringIO

import pytest
from made_up import MACHINE, MadeUp, comparison, made_up_turns
from rich.console import Console

from common.platform.machine import num_cores
from common.resolve import Settings, resolve_settings
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


def test_one_round_is_said_to_be_one(tmp_path):
    (line,) = warnings(tmp_path, repeats=1)
    assert line.startswith("one round only")


def test_a_first_run_that_is_an_outlier(tmp_path):
    def make(job):
        first = (job.implementation, job.round) == ("pt", 1)
        return steady(job, 0.6 if first else 1.0, changes={"startup_seconds": 20.0} if first else None)

    found = warnings(tmp_path, make)
    assert [line.partition(";")[0] for line in found if "first run" in line] == [
        "PyTorch: the first run is an outlier: its training is slower than the others'",
        "PyTorch: the first run is an outlier: its start-up is slower than the others'",
    ]


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


def test_a_spread_too_wide_for_the_difference(tmp_path):
    def make(job):
        noisy = {1: 1.0, 2: 1.6, 3: 0.9, 4: 1.5, 5: 1.2}[job.round]
        return MadeUp(speed=1000 * (noisy if job.implementation == "pt" else 1))

    (line,) = warnings(tmp_path, make)
    assert line.startswith("PyTorch: the spread is too wide to tell") and "rounds might" in line


def test_an_interval_that_is_wider_than_asked_for(tmp_path):
    def make(job):
        return MadeUp(speed=1000 * (1 + 0.02 * (-1) ** job.round if job.implementation == "pt" else 2))

    (line,) = [line for line in warnings(tmp_path / "a", make, ratio_within=0.001) if "--ratio-within" in line]
    assert line.startswith("PyTorch: not within 0.1% (--ratio-within): after 3 rounds the ends of the interval are 1")
    assert not any("--ratio-within" in line for line in warnings(tmp_path / "b", make, ratio_within=0.2))


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_no_difference_is_no_reason_to_warn(tmp_path, factor):
    def make(job):
        return MadeUp(speed=1000 * (factor if job.implementation == "pt" else 1) * (1 + 0.03 * (-1) ** job.round))

    assert warnings(tmp_path, make) == []


def test_threads_that_differ_or_are_too_many(tmp_path):
    def make(job):
        threads = 2 if job.implementation == "tf" else 1
        config = resolve_settings(job.config.replace(devices=1, threads_per_device=threads, epochs=2), Settings())
        return steady(job, changes={"config": config, "config_sha256": config.sha256(), "threads_per_device": threads})

    assert "threads per device differ: Lightning 1, PyTorch 1, TensorFlow 2" in warnings(tmp_path / "a", make)
    found = warnings(tmp_path / "b", steady, devices=1, threads_per_device=MACHINE.cores + 1)
    assert sum("wait for each other" in line for line in found) == 3
    assert not any("differ" in line for line in found)


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
    renamed = MACHINE.model_copy(update={"hostname": "another-name"})
    for changes, words in (
        ({"machine": other}, "not all runs are from the same machine"),
        ({"machine": renamed}, "hosts that differ only in name"),
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


def test_an_outlier_that_nobody_was_seen_to_make(tmp_path):
    def make(job):
        return steady(job, 0.1 if (job.implementation, job.round) == ("pt", 4) else 1.0, other_load=0.03)

    (line,) = [line for line in warnings(tmp_path, make, repeats=8) if "outlier" in line]
    assert line.startswith("PyTorch: 100 images/s is an outlier (seed 0, round 4; the median is 1,00")
    assert "other programs used 3% of the cores; it still counts" in line


def test_medians_and_pairs_that_contradict_each_other(tmp_path):
    speeds = {"tf": [9.0, 18, 31, 88, 90, 9, 18, 31], "pt": [10.0, 20, 24, 98, 100, 10, 20, 24]}

    def make(job):
        return MadeUp(speed=1000 * speeds.get(job.implementation, speeds["tf"])[job.round - 1])

    summary = comparison(tmp_path, make, repeats=8)
    pt = summary.rows[1]
    assert pt.ratio > 1 > pt.images_per_second / summary.rows[0].images_per_second
    assert pt.verdict == "no difference shown"
    assert any(line.startswith("PyTorch: the medians say 0.9") for line in summary.warnings)


def test_threads_that_wait_for_cores(tmp_path):
    def make(job):
        return steady(job, runnable_threads=MACHINE.cores + (2.5 if job.implementation == "pt" else 0.5))

    (line,) = warnings(tmp_path, make)
    assert line.startswith(
        f"PyTorch: {MACHINE.cores + 2.5:.1f} threads at a time wanted to run on {MACHINE.cores} cores;"
    )


def test_a_limit_of_the_container(tmp_path):
    (line,) = warnings(tmp_path, lambda job: steady(job, throttled=0.12 if job.implementation == "tf" else 0.0))
    assert line.startswith("TensorFlow: this container's CPU limit paused it in 12% of the scheduler")
