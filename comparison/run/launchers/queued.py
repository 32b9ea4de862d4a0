"""Submits programs to the queue of a cluster, a job for each group, and follows the jobs by the files they write."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.platform.errors import UserError
from common.platform.files import writing
from comparison.run.launchers import Follower, Group
from comparison.run.launchers.job_folder import JobFolder
from comparison.run.program import Ended, Program
from comparison.run.runner import MetricsTail
from comparison.run.store import clear_unfinished

POLL_SECONDS = 0.5  # between checks of the jobs' files
QUEUE_SECONDS = 5.0  # between queries of the queue, which serves other users too
GONE_SECONDS = 30.0  # from the end of a job until its files must be visible here, perhaps through a network disk
CANCEL_SECONDS = 90.0  # longest wait for cancelled jobs to end
MOST_JOBS = 100  # in the queue at the same time; each further job is submitted when one of these has ended


class Queue(Protocol):
    """An engine that runs jobs on the machines of a cluster.

    Attributes:
      name: `slurm`, as in --launcher.
      title: `Slurm`.
      options: as in --launcher-options.
    """

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def options(self) -> str: ...

    def check(self) -> None:
        """Raises UserError if jobs can't be submitted from this machine."""

    def submit(self, folder: Path, group: Group, timeout: float) -> str:
        """Submits a job that runs `launchers/on_node.py` with `folder`, and returns its number. Raises UserError."""

    def starter(self, program: Program) -> tuple[str, ...]:
        """The words in front of a command line that start it on several nodes, inside its job; empty for one node."""

    def states(self, numbers: Sequence[str]) -> dict[str, str] | None:
        """Number -> state of each of these jobs that has not ended; None if the engine does not answer."""

    def how_it_ended(self, number: str) -> str:
        """How a job that has not run all its programs has ended, in words: `was cancelled`."""

    def cancel(self, numbers: Sequence[str]) -> None: ...


@dataclass
class _Followed:
    """A submitted job and its progress.

    Attributes:
      place: index in the job of the program that runs or comes next.
      is_started: whether the follower knows that this program runs.
      gone_since: when the job was first missing from the queue, on the monotonic clock; None if it is there.
    """

    folder: JobFolder
    number: str
    programs: list[Program]
    place: int = 0
    is_started: bool = False
    tail: MetricsTail | None = None
    gone_since: float | None = None


@dataclass
class QueuedLauncher:
    """A `Launcher` that runs programs on the machines of an engine.

    Args:
      folder: the comparison's folder.
      say: called with messages about the jobs, for people.
    """

    queue: Queue
    folder: Path
    say: Callable[[str], None]

    @property
    def place(self) -> str:
        return f"{self.queue.name} {self.queue.options}"

    def run(
        self, groups: Sequence[Group], at_once: int, timeout: float, follower: Follower, turns: bool = False
    ) -> None:
        waiting = [list(group) for group in groups if group]
        followed = self._taken_over(waiting)
        try:
            asked = 0.0
            while waiting or followed:
                while waiting and len(followed) < MOST_JOBS:
                    if not self._hand_over(waiting, followed, timeout, turns):
                        break
                for job in followed:
                    self._look(job, follower)
                if followed and time.monotonic() - asked > QUEUE_SECONDS:
                    asked = time.monotonic()
                    self._ask(followed, follower)
                followed = [job for job in followed if job.place < len(job.programs)]
                if waiting or followed:
                    time.sleep(POLL_SECONDS)
        except BaseException:
            self._cancel(followed)
            raise

    def _hand_over(self, waiting: list[list[Program]], followed: list[_Followed], timeout: float, turns: bool) -> bool:
        """Submits the first group as a job; False if the queue accepts no more jobs for now."""
        group = [program.model_copy(update={"starter": self.queue.starter(program)}) for program in waiting[0]]
        for program in group:
            with writing(program.run_dir):
                clear_unfinished(program.run_dir)  # files that appear there from now on are the job's
        folder = JobFolder.make(self.folder, group, timeout, turns)
        try:
            number = self.queue.submit(folder.path, group, timeout)
        except UserError:
            if followed:  # perhaps there is a limit to the number of jobs
                time.sleep(POLL_SECONDS)
                return False
            raise
        folder.mark_submitted(self.queue.name, number)
        followed.append(_Followed(folder, number, group))
        waiting.pop(0)
        shown = group[0].run_dir.relative_to(self.folder.absolute())
        self.say(f"{self.queue.title}: job {number}, {shown}{f' and {len(group) - 1} more' if group[1:] else ''}")
        return True

    def _taken_over(self, waiting: list[list[Program]]) -> list[_Followed]:
        """Jobs of an earlier compare.py that run programs of `waiting`; these programs are removed from `waiting`."""
        asked = {program.run_dir for group in waiting for program in group}
        open_jobs = []
        for folder in JobFolder.all_of(self.folder):
            programs = folder.work().programs
            left = [place for place in range(len(programs)) if not folder.is_noted(place)]
            if left and asked & {programs[place].run_dir for place in left}:
                open_jobs.append(_Followed(folder, folder.submitted().number, programs, place=left[0]))
        states = self._states([job.number for job in open_jobs])
        taken = [
            job
            for job in open_jobs
            if job.number in states or any(map(job.folder.has_ended, range(job.place, len(job.programs))))
        ]
        for job in taken:
            self.say(f"{self.queue.title}: job {job.number} of an earlier compare.py: waiting for it")
        known = {program.run_dir for job in taken for program in job.programs}
        rest = [[program for program in group if program.run_dir not in known] for group in waiting]
        waiting[:] = [group for group in rest if group]
        return taken

    def _states(self, numbers: Sequence[str]) -> dict[str, str]:
        """The states of the jobs; waits until the engine answers."""
        has_warned = False
        while (states := self.queue.states(numbers) if numbers else {}) is None:
            if not has_warned:
                self.say(f"{self.queue.title} does not answer; it is asked again every {QUEUE_SECONDS:g} seconds")
                has_warned = True
            time.sleep(QUEUE_SECONDS)
        return states

    def _look(self, job: _Followed, follower: Follower) -> None:
        """Reads the job's files, and reports what is new to the follower."""
        while job.place < len(job.programs):
            program = job.programs[job.place]
            ended = job.folder.ended(job.place)
            if ended is None and not program.run_dir.exists():
                return
            if not job.is_started:
                job.is_started, job.tail = True, MetricsTail(program.run_dir)
                follower.started(program)
            assert job.tail is not None
            try:
                for line in job.tail.read():
                    follower.see(program, line)
            except UserError:  # the metrics are not valid, so the result will not be accepted either
                pass
            if ended is None:
                return
            self._pass_on(job, ended, follower)
            job.folder.take_note(job.place - 1)

    def _pass_on(self, job: _Followed, ended: Ended, follower: Follower) -> None:
        program = job.programs[job.place]
        if not job.is_started:
            follower.started(program)
        follower.ended(program, ended)
        job.place, job.is_started, job.tail = job.place + 1, False, None

    def _ask(self, followed: list[_Followed], follower: Follower) -> None:
        """Finds the jobs that have ended without running all their programs; these programs have failed."""
        states = self.queue.states([job.number for job in followed])
        if states is None:  # the queue may answer the next time; until then the jobs' files are still read
            return
        for job in followed:
            if job.number in states:
                job.gone_since = None
                continue
            now = time.monotonic()
            job.gone_since = job.gone_since or now
            how = self.queue.how_it_ended(job.number)
            if now - job.gone_since < GONE_SECONDS:
                continue
            output = job.folder.last_output()
            failure = f"{self.queue.title}: job {job.number} {how}{f': {output}' if output else ''}"
            while job.place < len(job.programs):
                self._pass_on(job, Ended.unknown(failure), follower)

    def _cancel(self, followed: list[_Followed]) -> None:
        """Cancels the jobs and waits until they have ended, so that no run continues unnoticed."""
        numbers = [job.number for job in followed]
        if not numbers:
            return
        self.say(f"{self.queue.title}: cancelling {'job' if len(numbers) == 1 else 'jobs'} {', '.join(numbers)}")
        self.queue.cancel(numbers)
        deadline = time.monotonic() + CANCEL_SECONDS
        while (left := self.queue.states(numbers)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if left:
            self.say(f"{self.queue.title}: {', '.join(left)} not ended yet; --resume will follow what is left of them")
