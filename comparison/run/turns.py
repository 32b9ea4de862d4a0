"""Turns: all programs of a round are alive, and train one after the other, a tenth of a second each, many times.

Two programs that train within the same second meet the same machine, so whatever slows it down cancels in their ratio.
The protocol and the other end of each connection are in common/record/turns.py.
"""

import itertools
import json
import math
import random
import secrets
import selectors
import socket
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from common.platform.machine import control_group_memory_left, num_cores
from common.record.monitor import free_gpu_memory
from common.record.recorder import num_warmup_steps
from common.record.results import MetricsLine, PlanLine
from common.record.turns import SOCKET_VARIABLE, Turn, socket_address
from comparison.run.program import Program, RunEnd
from comparison.run.runner import POLL_SECONDS, Follower, RunningProgram, begin_imports, end_all
from comparison.run.store import run_again_dir

TURN_SECONDS = 0.1  # of the slowest program; shorter turns cancel more of the noise, see docs/comparison.md
LONGEST_EPOCH_TURN = 1.0  # seconds of the slowest program's epoch, up to which a turn is a whole epoch
FASTEST_SECONDS = 0.03  # on GPUs, the least of the fastest program
WAKING_STEPS = 3  # of each turn that is a part of an epoch, not timed: see docs/comparison.md
WATCH_SECONDS = 1.0  # between two looks at a program that has its turn
MEMORY_MARGIN = 1.5  # over what a program uses after its warm-up: it needs more for its evaluation and its end
LEAST_CYCLES = 10  # in a short training, turns are shorter so that there are as many


def run_in_turns(programs: Sequence[Program], timeout: float, follower: Follower) -> None:
    """Runs the programs of a round to their ends.

    They start, as many side by side as there are cores; then they train in turns; then they end, side by side as well.
    A program that fails lets the others go on. No process outlives this call.

    When the next program would not fit into memory beside those that are alive, it and the rest are a further group,
    in which the program of the first row trains once more.

    Args:
      timeout: seconds that one program may take, without waiting for its turns.
    """
    first, *others = sorted(programs, key=lambda program: not program.is_reference)
    begin_imports(programs)
    for group in itertools.count(1):
        others = _run_group([first, *others], timeout, follower, group)
        if not others:
            return


def _run_group(programs: Sequence[Program], timeout: float, follower: Follower, group: int) -> list[Program]:
    """Runs the first of the programs and those that fit into memory beside it; returns the others."""
    first, *others = programs
    at_once = num_cores()
    if group > 1:
        again = first.config.replace(run_dir=run_again_dir(first.run_dir, group))
        first = first.model_copy(update={"config": again})
    waiting, members = [first, *others], list[TurnsMember]()
    needed: dict[str, float] = {}  # the most that a program has used so far, on average
    at_first = free_memory(first)
    try:
        while True:
            starting = [member for member in members if member.process and not member.waits]
            if waiting and len(starting) < at_once:
                free = free_memory(first)
                used = {kind: (at_first[kind] - now) / max(1, len(members)) for kind, now in free.items()}
                needed = {kind: max(needed.get(kind, 0.0), each) for kind, each in used.items()}
                fits = all(free[kind] >= (len(starting) + MEMORY_MARGIN) * each for kind, each in needed.items())
                if fits or len(members) < 2:
                    members.append(TurnsMember(waiting.pop(0), timeout, follower, group))
                    members[-1].start()
                    continue
            if not starting:
                break
            for member in starting:
                member.watch(POLL_SECONDS / len(starting))
        _train([member for member in members if member.waits])
        let_go(members, at_once)
    finally:
        for member in members:
            member.hang_up()
        end_all(members)
    return waiting


def free_memory(program: Program) -> dict[str, int]:
    """Bytes of memory that further programs like `program` can use: of the machine, and of each of its GPUs."""
    limit, available = control_group_memory_left(), psutil.virtual_memory().available
    memory = {"memory": available if limit is None else min(limit, available)}
    config = program.config
    gpus = config.devices if config.accelerator == "gpu" and isinstance(config.devices, int) else 0
    return memory | {f"GPU {index}": free for index, free in enumerate(free_gpu_memory(gpus))}


def let_go(members: Sequence["TurnsMember"], at_once: int) -> None:
    """Lets programs take the steps that are left, which are not timed, and end."""
    waiting, running = [member for member in members if member.process], list[TurnsMember]()
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(waiting.pop(0))
            running[-1].forget_waiting()
        for member in running:
            if member.waits:
                member.answer(Turn(0, member.total_steps, member.total_steps))
            member.watch(POLL_SECONDS / len(running))
        running = [member for member in running if member.process]


def _train(members: list["TurnsMember"]) -> None:
    """Has each of the members warm up, then gives them turns until all have taken their last step.

    Warm-up is a turn, too: while other programs start, PyTorch's threads, which spin, take up to 20 times as long.
    """
    if not members:
        return
    done, total = (max(getattr(member, name) for member in members) for name in ("done", "total_steps"))
    warm = done - 1 + num_warmup_steps(total - done + 1)
    for member in members:
        member.take(Turn(0, warm, warm))
    done = max(member.done for member in members)
    most = (total - done) / LEAST_CYCLES
    order = list(members)
    for cycle in itertools.count(1):
        turn = next_turn(cycle, done, most, [member for member in members if member.waits])
        if cycle == 1 and turn.until > total and (left := [each.done for each in members if each.done < total]):
            turn = Turn(cycle, max(left), total)  # not even one fits: each takes all steps that are left, and is timed
        if turn.until > total:
            return
        order = order[::-1] if cycle % 2 == 0 else random.sample(order, len(order))
        for member in order:
            member.take(turn)
        # A program that takes several steps in one call may be further than it was told.
        done = max(turn.until, *(member.done for member in members))


def next_turn(cycle: int, done: int, most: float, members: Sequence["TurnsMember"]) -> Turn:
    """The turn of the next cycle, after step `done`.

    Where epochs are short, a turn is one of them or more: then a program waits between the training of an epoch and
    its evaluation, which wakes it up, and trains as it would alone. Elsewhere a turn is a part of an epoch. Its first
    steps wake the program up and are not timed.

    Args:
      most: number of steps of a turn, with those that are not timed.
      members: those that have not ended.
    """
    speeds = [statistics.median(member.seconds_per_step or [math.inf]) for member in members] or [1.0]
    slowest, fastest = max(speeds), min(speeds)
    per_epoch = max((member.steps_per_epoch for member in members), default=1)
    usual = TURN_SECONDS / slowest
    if any(member.program.config.accelerator == "gpu" for member in members):
        # A program runs ahead of the GPU, which stands still at the beginning and the end of a turn.
        usual = min(max(usual, FASTEST_SECONDS / fastest), LONGEST_EPOCH_TURN / slowest)
    if per_epoch <= min(LONGEST_EPOCH_TURN / slowest, most):
        begins = math.ceil(done / per_epoch) * per_epoch
        if begins > done:  # the rest of the epoch of the warm-up
            return Turn(cycle, begins, begins)
        return Turn(cycle, done, done + max(1, math.floor(min(usual, most) / per_epoch)) * per_epoch)
    steps_per_call = max((member.steps_per_call for member in members), default=1)
    waking = max(WAKING_STEPS, steps_per_call)
    steps = max(1, math.floor(min(usual, most - waking)), steps_per_call)
    timed_after = done + waking
    return Turn(cycle, timed_after, timed_after + steps)


class TurnsMember(RunningProgram):
    """A program of a round. For its timeout, only the time counts in which it was to do something.

    Attributes:
      done: number of steps taken when it last began to wait.
      seconds_per_step: of its latest turns, by its own clock; of the warm-up before the first one.
      steps_per_call: the most steps of a call that can't be shorter.
    """

    def __init__(self, program: Program, timeout: float, follower: Follower, group: int = 1) -> None:
        """`group`: number of its group of the round, see `run_in_turns`."""
        super().__init__(program, timeout, follower)
        self.group = group
        self.done, self.total_steps, self.steps_per_epoch, self.steps_per_call = 0, 1, 1, 1
        self.seconds_per_step: deque[float] = deque(maxlen=5)
        self._waiting: dict[socket.socket, bool] = {}  # by connection
        self._selector = selectors.DefaultSelector()
        token = f"turns-{secrets.token_hex(8)}"
        self.socket_name = f"@{token}" if sys.platform == "linux" else f"/tmp/{token}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(socket_address(self.socket_name))
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def start(self, forked: bool = True, **environment: str) -> None:
        super().start(forked, **environment, **{SOCKET_VARIABLE: self.socket_name})

    @property
    def waits(self) -> bool:
        """Whether all processes of the program wait for their turn."""
        return self.process is not None and bool(self._waiting) and all(self._waiting.values())

    def take(self, turn: Turn) -> None:
        """Lets the program train until the end of a turn, if it has not ended."""
        if self.waits and self.done < turn.until:
            self.answer(turn)
            self._follow()

    def hang_up(self) -> None:
        """Closes all connections: a program that waits for its turn goes on."""
        for connection in [self._listener, *self._waiting]:
            connection.close()
        self._waiting.clear()
        self._selector.close()
        Path(self.socket_name).unlink(missing_ok=True)

    def answer(self, turn: Turn) -> None:
        text = (json.dumps(asdict(turn)) + "\n").encode()
        for connection in self._waiting:
            self._waiting[connection] = False
            with suppress(OSError):  # the process has ended, which `_follow` will find
                connection.sendall(text)

    def _follow(self) -> None:
        """Follows the program until it waits or has ended."""
        self.forget_waiting()
        while self.process and not self.waits:
            self.watch(WATCH_SECONDS)

    def watch(self, seconds: float) -> None:
        """Takes what the program says within `seconds`, and looks whether it has ended."""
        self._receive(seconds)
        self.look()

    def _receive(self, seconds: float) -> None:
        """Takes what the program's processes say within `seconds`: new connections, and that they wait."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                with suppress(BlockingIOError):
                    while True:
                        new, _ = self._listener.accept()
                        self._waiting[new] = False
                        self._selector.register(new, selectors.EVENT_READ)
                continue
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                line = connection.recv(4096)  # a short line, which a local socket delivers as it was sent
            except OSError:
                line = b""
            if line:
                message = json.loads(line)
                self.done, self.steps_per_call = message["step"], message["steps_per_call"]
                if message["seconds_per_step"]:
                    self.seconds_per_step.append(message["seconds_per_step"])
                self._waiting[connection] = True
            else:  # the process has ended
                self._selector.unregister(connection)
                del self._waiting[connection]
                connection.close()

    def has_ended(self) -> bool:
        """A program that waits has not. Asking its server would take milliseconds between two turns."""
        return not self.waits and super().has_ended()

    def see(self, line: MetricsLine) -> None:
        if isinstance(line, PlanLine):
            self.total_steps, self.steps_per_epoch = line.total_steps, line.steps_per_epoch
        super().see(line)

    def end(self, failure: str | None) -> None:
        self.hang_up()
        super().end(failure)

    def how_ended(self, failure: str | None) -> RunEnd:
        """Without the load of other programs: those of the round are among them."""
        return super().how_ended(failure).model_copy(update={"other_load": None, "group": self.group})
