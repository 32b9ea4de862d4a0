"""What is shown while runs are made: their progress and the time left."""

import io

from made_up import MadeUp, comparison
from rich.console import Console

from common.record.results import PlanLine, StepLine
from comparison import load
from comparison.plan.jobs import comparison_jobs, make_variants
from comparison.show.live import LiveView


def shown(tmp_path, terminal, finished):
    """The text shown so far when `finished` of nine runs have ended and the next one has just begun."""
    comparison(tmp_path, lambda job: MadeUp(process_seconds=100 if job.implementation == "tf" else 40), repeats=3)
    summary = load(tmp_path)
    options = summary.request.options
    jobs = list(comparison_jobs(options, make_variants(options, summary.request.config)))
    by_dir = {run.run_dir: run for run in summary.ended}
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=terminal, highlight=False, markup=False, color_system=None)
    with LiveView(console, len(jobs), []) as view:
        for number, job in enumerate(jobs[: finished + 1]):
            view.start(job, jobs[number + 1 :])
            view.see(job, PlanLine(kind="plan", implementation="pt", total_steps=20, steps_per_epoch=10, num_epochs=2))
            view.see(job, StepLine(kind="step", step=10, loss=1.5))
            if number < finished:
                view.end(job, by_dir[tmp_path / job.path])
    return text.getvalue()


def test_the_time_left_is_that_of_the_runs_to_come_by_their_kind(tmp_path):
    # Of 3 x (100 + 40 + 40) seconds, one round is done. The run that has just begun still counts in full.
    assert "3 of 9, 6:00 left" in shown(tmp_path / "a", True, 3)
    assert "4 of 9, 5:20 left" in shown(tmp_path / "b", True, 4)  # the second round begins with pt
    plain = shown(tmp_path / "c", False, 3)
    assert "\x1b" not in plain and "runs: 3 of 9, 6:00 left" in plain.splitlines()
    assert plain.splitlines()[1] == "TensorFlow (seed 0, round 1): done after 100.0 s"
