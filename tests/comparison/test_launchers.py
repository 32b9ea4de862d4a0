"""Launchers that submit jobs to a queue. Here its jobs are processes on this machine, with made-up implementations."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_for

from common.platform.errors import UserError
from common.record.results import StepLine, read_result
from common.spec.options import TrainConfig
from comparison.plan.jobs import make_variants
from comparison.plan.options import CompareConfig
from comparison.run import runner
from comparison.run.launchers import queued
from comparison.run.launchers.choosing import check_launcher, make_launcher
from comparison.run.launchers.job_folder import JobFolder
from comparison.run.launchers.queued import QueuedLauncher
from comparison.run.launchers.slurm import Slurm
from comparison.run.launchers.this_machine import ThisMachine
from comparison.run.program import Program


class Processes:
    """A queue whose jobs are processes on this machine, which run all at once."""

    name, title, options = "slurm", "Processes", ""

    def __init__(self, project):
        self.project, self.jobs, self.silent, self.places = project, {}, 0, 100

    def check(self):
        pass

    def submit(self, folder, group, timeout):
        if sum(process.poll() is None for process in self.jobs.values()) >= self.places:
            raise UserError("no more places")
        number = str(len(self.jobs) + 1)
        self.start(number, folder)
        return number

    def start(self, number, folder):
        environment = {**os.environ, "PYTHONPATH": str(self.project)}
        command = [sys.executable, "-m", "comparison.run.launchers.on_node", str(folder)]
        with open(folder / "output.txt", "a") as output:
            self.jobs[number] = subprocess.Popen(
                command, cwd=self.project, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def starter(self, program):
        return ()

    def states(self, numbers):
        if self.silent:
            self.silent -= 1
            return None
        return {number: "RUNNING" for number in numbers if number in self.jobs and self.jobs[number].poll() is None}

    def how_it_ended(self, number):
        return f"ended with {self.jobs[number].returncode}"

    def cancel(self, numbers):
        for number in numbers:
            self.jobs[number].terminate()


class Notes(list):
    """A follower that records its calls."""

    def __init__(self):
        self.sessions = {}

    def started(self, program):
        self.append(("started", program.run_dir.name))

    def see(self, program, line):
        if isinstance(line, StepLine):
            self.append((f"step {line.step}", program.run_dir.name))

    def ended(self, program, ended):
        self.append((ended.failure or "done", program.run_dir.name))
        self.sessions[program.run_dir.name] = program.session

    def of(self, name):
        return [what for what, whose in self if whose == name]

    def without_steps(self):
        return [one for one in self if not one[0].startswith("step")]


@pytest.fixture
def queue(project, monkeypatch):
    monkeypatch.setattr(queued, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(queued, "QUEUE_SECONDS", 0.2)
    monkeypatch.setattr(queued, "GONE_SECONDS", 0.5)
    queue = Processes(project)
    yield queue
    for process in queue.jobs.values():
        process.kill()
        process.wait()


def program(folder, name, implementation="one", session=1, **options):
    options = {"epochs": 2, "train_size": 500, "batch_size": 20, "accelerator": "cpu", **options}
    config = TrainConfig(**options, run_dir=folder / "runs" / name)
    return Program(implementation=implementation, interpreter=sys.executable, config=config, session=session)


def test_a_group_is_one_job_that_runs_its_programs_in_a_row(queue, tmp_path):
    notes, said = Notes(), []
    groups = [[program(tmp_path, "a"), program(tmp_path, "b", "two")], [program(tmp_path, "c")]]
    QueuedLauncher(queue, tmp_path, said.append).run(groups, 1, 60, notes)
    assert said == ["Processes: job 1, runs/a and 1 more", "Processes: job 2, runs/c"]
    for name in "abc":
        told = notes.of(name)
        assert (told[0], told[1], told[-2], told[-1]) == ("started", "step 1", "step 50", "done") and len(told) == 52
    assert notes.index(("done", "a")) < notes.index(("started", "b"))
    assert read_result(tmp_path / "runs" / "b").implementation == "two"


def test_a_job_that_ends_before_its_time_is_reported_with_its_last_words(queue, tmp_path):
    notes = Notes()
    groups = [[program(tmp_path, "a", "hang"), program(tmp_path, "b")]]
    launcher = QueuedLauncher(queue, tmp_path, lambda text: None)

    def see(program, line):
        queue.jobs["1"].kill()

    notes.see = see
    launcher.run(groups, 1, 60, notes)
    assert notes == [
        ("started", "a"),
        ("Processes: job 1 ended with -9", "a"),
        ("started", "b"),
        ("Processes: job 1 ended with -9", "b"),
    ]


def test_a_folder_that_the_job_cannot_see_is_named(queue, tmp_path):
    notes = Notes()
    start = queue.start
    queue.start = lambda number, folder: start(number, folder) or (folder / "job.json").unlink()
    QueuedLauncher(queue, tmp_path, lambda text: None).run([[program(tmp_path, "a")]], 1, 60, notes)
    (failure, _) = notes[-1]
    assert failure.startswith("Processes: job 1 ended with 2: comparison.run.launchers.on_node: error: ")
    assert failure.endswith("job.json: missing")


def test_a_program_that_fails_is_reported_as_on_this_machine(queue, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "REPOSITORY", queue.project)
    told = []
    for launcher in (QueuedLauncher(queue, tmp_path, lambda text: None), ThisMachine(tmp_path)):
        notes = Notes()
        launcher.run([[program(tmp_path, "a", "crash")], [program(tmp_path, "b")]], 1, 60, notes)
        told.append(sorted(notes.without_steps()))
        assert "the reason of the crash" in (tmp_path / "runs" / "a" / "log.txt").read_text()
    assert told[0] == told[1] == [("done", "b"), ("exit status 1", "a"), ("started", "a"), ("started", "b")]


def test_jobs_of_a_compare_py_that_is_gone_are_followed(queue, tmp_path):
    groups = [[program(tmp_path, "a"), program(tmp_path, "b")]]
    folder = JobFolder.make(tmp_path, groups[0], 60, turns=False)
    folder.mark_submitted("slurm", queue.submit(folder.path, groups[0], 60))
    notes, said = Notes(), []
    later = [[program(tmp_path, name, session=2) for name in "abc"]]
    QueuedLauncher(queue, tmp_path, said.append).run(later, 1, 60, notes)
    assert said == ["Processes: job 1 of an earlier compare.py: waiting for it", "Processes: job 2, runs/c"]
    assert notes.sessions == {"a": 1, "b": 1, "c": 2} and len(queue.jobs) == 2
    assert {step for step in notes.without_steps() if step[0] == "done"} == {("done", name) for name in "abc"}
    assert folder.is_done and folder.is_noted(1)


def test_what_a_job_has_finished_is_taken_over_by_this_machine(queue, tmp_path):
    group = [program(tmp_path, "a")]
    folder = JobFolder.make(tmp_path, group, 60, turns=False)
    folder.mark_submitted("slurm", queue.submit(folder.path, group, 60))
    assert queue.jobs["1"].wait(60) == 0
    notes = Notes()
    queue.project = Path("nowhere")
    ThisMachine(tmp_path).run([[program(tmp_path, "a", session=2)]], 1, 60, notes)
    assert notes == [("started", "a"), ("done", "a")] and notes.sessions == {"a": 1}
    assert folder.is_noted(0)


def test_this_machine_begins_nothing_beside_jobs_that_may_run(queue, tmp_path, monkeypatch):
    group = [program(tmp_path, "a")]
    JobFolder.make(tmp_path, group, 60, turns=False).mark_submitted("slurm", "12")
    options = CompareConfig()
    states = {"12": "RUNNING"}
    monkeypatch.setattr(Slurm, "states", lambda self, numbers: states)
    with pytest.raises(
        UserError, match="jobs 12 of Slurm still run for this comparison; add --launcher slurm to wait for them"
    ):
        make_launcher(options, tmp_path, print)
    monkeypatch.setattr(Slurm, "states", lambda self, numbers: None)
    with pytest.raises(
        UserError, match="Slurm does not answer, and its jobs 12 may still run for this comparison; .* remove .*jobs"
    ):
        make_launcher(options, tmp_path, print)
    monkeypatch.setattr(Slurm, "states", lambda self, numbers: {})
    assert make_launcher(options, tmp_path, print).place == ""


def test_being_interrupted_cancels_the_jobs(queue, tmp_path):
    said, notes = [], Notes()

    def see(program, line):
        raise KeyboardInterrupt

    notes.see = see
    groups = [[program(tmp_path, "a", "hang")], [program(tmp_path, "b", "hang")]]
    with pytest.raises(KeyboardInterrupt):
        QueuedLauncher(queue, tmp_path, said.append).run(groups, 1, 60, notes)
    assert said[-1] == "Processes: cancelling jobs 1, 2"
    assert all(process.poll() is not None for process in queue.jobs.values())


@pytest.mark.slow
def test_a_queue_that_is_full_or_silent_is_waited_for(queue, tmp_path):
    queue.places, queue.silent, notes, said = 1, 0, Notes(), []

    def started(program):
        queue.silent = 3

    notes.started = started
    groups = [[program(tmp_path, name)] for name in "abc"]
    QueuedLauncher(queue, tmp_path, said.append).run(groups, 1, 60, notes)
    assert notes.without_steps() == [("done", "a"), ("done", "b"), ("done", "c")]
    queue.places = 0
    with pytest.raises(UserError, match="no more places"):
        QueuedLauncher(queue, tmp_path, said.append).run([[program(tmp_path, "d")]], 1, 60, notes)


@pytest.mark.slow
def test_a_job_that_comes_back_leaves_out_what_has_ended(queue, tmp_path):
    group = [program(tmp_path, "a"), program(tmp_path, "b", "hang")]
    folder = JobFolder.make(tmp_path, group, 60, turns=False)
    folder.mark_submitted("slurm", queue.submit(folder.path, group, 60))
    wait_for(lambda: (tmp_path / "runs" / "b" / "metrics.jsonl").exists())
    queue.jobs["1"].kill()
    queue.jobs["1"].wait()
    before = (tmp_path / "runs" / "a" / "result.json").stat().st_mtime_ns
    queue.start("1", folder.path)
    wait_for(lambda: (tmp_path / "runs" / "b.unfinished-1").exists())
    assert (tmp_path / "runs" / "a" / "result.json").stat().st_mtime_ns == before


def test_options_of_launchers_fit_them(monkeypatch):
    def said(*sweep, **options):
        given = CompareConfig(**options, sweep=list(sweep))
        with pytest.raises(UserError) as caught:
            check_launcher(given, given.train_config(), make_variants(given, given.train_config()))
        return str(caught.value)

    assert said(num_nodes=2) == "--num-nodes 2: --launcher local is this machine; use slurm or ray"
    assert said(launcher_options="-p x") == "--launcher-options: only for --launcher slurm or ray"
    monkeypatch.setenv("PATH", "/nowhere")
    assert said(launcher="slurm").startswith("--launcher slurm: no sbatch on this machine; run it on a login node")
    monkeypatch.setattr(Slurm, "check", lambda self: None)
    assert said(launcher="slurm").startswith("--launcher slurm: needs --accelerator cpu or gpu")
    on_slurm = {"launcher": "slurm", "accelerator": "cpu"}
    assert said(**on_slurm, num_nodes=2) == "--num-nodes 2: needs --devices N, the number of devices of each node"
    assert said("devices=1,2", **on_slurm).endswith("--launcher slurm needs --threads-per-device N, the same for all")
