"""Each warning: said where it should be, and nowhere else."""

import pytest
from made_up import MACHINE, MadeUp, comparison

from common.resolve import Settings, resolve_settings


def warnings(folder, make=lambda job: MadeUp(), **options):
    return comparison(folder, make, **{"repeats": 5, **options}).warnings


def steady(job, factor=1.0, **more):
    return MadeUp(speed=1000 * factor * (1 + 0.002 * ((job.round * 3) % 5)), **more)


def test_a_steady_machine_gives_no_warning(tmp_path):
    assert warnings(tmp_path, steady) == []


def test_one_round_is_said_to_be_one(tmp_path):
    (line,) = warnings(tmp_path, repeats=1)
    assert line.startswith("one round only")


def test_a_first_run_that_is_an_outlier(tmp_path):
    def make(job):
        first = (job.implementation, job.round) == ("pt", 1)
        return steady(job, 0.6 if first else 1.0, changes={"startup_seconds": 20.0} if first else None)

    found = warnings(tmp_path, make)
    assert [line for line in found if "first run" in line] == [
        "pt: the first run is an outlier: its training is slower than the others'; leave it out of conclusions",
        "pt: the first run is an outlier: its start-up is slower than the others'; leave it out of conclusions",
    ]


def test_other_load(tmp_path):
    def make(job):
        return steady(job, other_load=0.4 if (job.implementation, job.round) == ("ptl", 3) else 0.02)

    (line,) = warnings(tmp_path, make)
    assert "busy during 1 of 15 runs, at most 40% of its cores (ptl, seed 0, round 3)" in line


def test_a_spread_too_wide_for_the_difference(tmp_path):
    def make(job):
        noisy = {1: 1.6, 2: 0.9, 3: 1.5, 4: 0.8, 5: 1.2}[job.round]
        return MadeUp(speed=1000 * (noisy if job.implementation == "pt" else 1))

    (line,) = warnings(tmp_path, make)
    assert line.startswith("pt: the spread is too wide to tell") and "rounds might" in line


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

    assert "thread counts differ: pt 1, ptl 1, tf 2 threads for each device" in warnings(tmp_path / "a", make)
    found = warnings(tmp_path / "b", steady, devices=1, threads_per_device=MACHINE.cores + 1)
    assert sum("wait for each other" in line for line in found) == 3
    assert not any("differ" in line for line in found)


def test_a_machine_versions_or_code_that_changed(tmp_path):
    other = MACHINE.model_copy(update={"cores": MACHINE.cores + 1})
    renamed = MACHINE.model_copy(update={"hostname": "another-name"})
    for changes, words in (
        ({"machine": other}, "not all runs are from the same machine"),
        ({"machine": renamed}, "hosts of different names"),
        ({"versions": {"python": "3.11.0", "made-up": "1.1"}}, "tf: not all runs have the same made-up: 1.0 and 1.1"),
        (
            {"git": {"commit": "b" * 40, "dirty": False}},
            "the code changed between runs: commits aaaaaaaaaaaa and bbbbbb",
        ),
        ({"code_sha256": "1" * 64}, "different states of commit aaaaaaaaaaaa"),
    ):
        late = {4: changes, 5: changes}
        found = warnings(tmp_path / words[:8], lambda job, late=late: steady(job, changes=late.get(job.round)))
        assert any(words in line for line in found), found
