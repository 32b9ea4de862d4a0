"""Hands programs to the queue of a cluster, a job for each group, and follows the jobs by the files that they write."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.platform.errors import UserError
from common.platform.files import writing
from comparison.launchers import Follower, Group
from comparison.launchers.job_folder import JobFolder
from comparison.program import Ended, Program
from comparison.runner import MetricsTail
from comparison.store import clear_unfinished

POLL_SECONDS = 0.5  # between looks at the jobs' files
QUEUE_SECONDS = 5.0  # between questions to the queue, which serves others too
GONE_SECONDS = 30.0  # that files may take to be seen here, on a network disk, when their job has ended
CANCEL_SECONDS = 90.0  # in which a cancelled job is gone
MOST_JOBS = 100  # in the queue at a time; the others are handed over when these have ended


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
        """Raises UserError where jobs can't be handed over from this machine."""

    def submit(self, folder: Path, group: Group, timeout: float) -> str:
        """Hands over a job that runs `comparison.launchers.on_node` with `folder`; its number. Raises UserError."""

    def starter(self, program: Program) -> tuple[str, ...]:
        """Words that start a program of several nodes from within its job; empty for one node."""

    def states(self, numbers: Sequence[str]) -> dict[str, str] | None:
        """What those of the jobs are doing that have not ended; None where the engine doesn't answer."""

    def how_it_ended(self, number: str) -> str:
        """Of a job that has not done all that it was to do: `was cancelled`."""

    def cancel(self, numbers: Sequence[str]) -> None: ...


@dataclass
class _Followed:
    """A job, and what has been seen of it.

    Attributes:
      place: of the program that runs, or is next, in the job.
      is_started: whether the follower knows that this program runs.
      gone_since: when the queue no longer had the job, on the monotonic clock.
    """

    folder: JobFolder
    number: str
    programs: list[Program]
    place: int = 0
    is_started: bool = False
    tail: MetricsTail | None = None
    gone_since: float | None = None


@dataclass
class Queued:
    """See `Launcher`: on an engine's machines.

    Args:
      folder: of the comparison.
      say: told what a person should know of the jobs.
    """

    queue: Queue
    folder: Path
    say: Callable[[str], None]

    @property
    def place(self) -> str:
        return f"{self.queue.name} {self.queue.options}"

    def run(self, groups: Sequence[Group], at_once: int, timeout: float, follower: Follower) -> None:
        waiting = [list(group) for group in groups if group]
        followed = self._taken_over(waiting)
        try:
            asked = 0.0
            while waiting or followed:
                while waiting and len(followed) < MOST_JOBS:
                    if not self._hand_over(waiting, followed, timeout):
                        break
                for one in followed:
                    self._look(one, follower)
                if followed and time.monotonic() - asked > QUEUE_SECONDS:
                    asked = time.monotonic()
                    self._ask(followed, follower)
                followed = [one for one in followed if one.place < len(one.programs)]
                if waiting or followed:
                    time.sleep(POLL_SECONDS)
        except BaseException:
            self._cancel(followed)
            raise

    def _hand_over(self, waiting: list[list[Program]], followed: list[_Followed], timeout: float) -> bool:
        """Makes a job of the first group; False where the queue takes no more for now."""
        group = [program.model_copy(update={"starter": self.queue.starter(program)}) for program in waiting[0]]
        for program in group:
            with writing(program.run_dir):
                clear_unfinished(program.run_dir)  # what is there from now on is the job's
        folder = JobFolder.make(self.folder, group, timeout)
        try:
            number = self.queue.submit(folder.path, group, timeout)
        except UserError:
            if followed:  # a limit to the number of jobs, perhaps
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
        """Jobs of an earlier compare.py that make what is asked for; takes this off `waiting`."""
        asked = {program.run_dir for group in waiting for program in group}
        open_jobs = []
        for folder in JobFolder.all_of(self.folder):
            programs = folder.work().programs
            left = [place for place in range(len(programs)) if not folder.is_noted(place)]
            if left and asked & {programs[place].run_dir for place in left}:
                open_jobs.append(_Followed(folder, folder.submitted().number, programs, place=left[0]))
        states = self._states([one.number for one in open_jobs])
        taken = [
            one
            for one in open_jobs
            if one.number in states or any(map(one.folder.has_ended, range(one.place, len(one.programs))))
        ]
        for one in taken:
            self.say(f"{self.queue.title}: job {one.number} of an earlier compare.py: waiting for it")
        known = {program.run_dir for one in taken for program in one.programs}
        rest = [[program for program in group if program.run_dir not in known] for group in waiting]
        waiting[:] = [group for group in rest if group]
        return taken

    def _states(self, numbers: Sequence[str]) -> dict[str, str]:
        """Waits until the engine answers."""
        told = False
        while (states := self.queue.states(numbers) if numbers else {}) is None:
            if not told:
                self.say(f"{self.queue.title} does not answer; it is asked again every {QUEUE_SECONDS:g} seconds")
                told = True
            time.sleep(QUEUE_SECONDS)
        return states

    def _look(self, one: _Followed, follower: Follower) -> None:
        """Passes on what the job's files tell."""
        while one.place < len(one.programs):
            program = one.programs[one.place]
            ended = one.folder.ended(one.place)
            if ended is None and not program.run_dir.exists():
                return
            if not one.is_started:
                one.is_started, one.tail = True, MetricsTail(program.run_dir)
                follower.started(program)
            assert one.tail is not None
            try:
                for line in one.tail.read():
                    follower.see(program, line)
            except UserError:  # its result will not be taken either
                pass
            if ended is None:
                return
            self._pass_on(one, ended, follower)
            one.folder.take_note(one.place - 1)

    def _pass_on(self, one: _Followed, ended: Ended, follower: Follower) -> None:
        program = one.programs[one.place]
        if not one.is_started:
            follower.started(program)
        follower.ended(program, ended)
        one.place, one.is_started, one.tail = one.place + 1, False, None

    def _ask(self, followed: list[_Followed], follower: Follower) -> None:
        """Finds the jobs that have ended without having done all."""
        states = self.queue.states([one.number for one in followed])
        if states is None:  # it may be back the next time; the files are looked at all the same
            return
        for one in followed:
            if one.number in states:
                one.gone_since = None
                continue
            now = time.monotonic()
            one.gone_since = one.gone_since or now
            how = self.queue.how_it_ended(one.number)
            if now - one.gone_since < GONE_SECONDS:
                continue
            said = one.folder.last_output()
            failure = f"{self.queue.title}: job {one.number} {how}{f': {said}' if said else ''}"
            while one.place < len(one.programs):
                self._pass_on(one, Ended.unknown(failure), follower)

    def _cancel(self, followed: list[_Followed]) -> None:
        """Ends the jobs, and waits until they are gone: no run is made behind anybody's back."""
        numbers = [one.number for one in followed]
        if not numbers:
            return
        self.say(f"{self.queue.title}: cancelling {'job' if len(numbers) == 1 else 'jobs'} {', '.join(numbers)}")
        self.queue.cancel(numbers)
        deadline = time.monotonic() + CANCEL_SECONDS
        while (left := self.queue.states(numbers)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if left:
            self.say(f"{self.queue.title}: {', '.join(left)} not ended yet; --resume will follow what is left of them")
