"""Simulated timings of two implementations on a realistic machine, to test the statistics against a known truth."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from common.record.results import TurnLine
from common.spec.batches import Plan
from comparison.measure.rounds import further_rounds
from comparison.measure.table import Row, Table, speed_ratio
from comparison.plan.jobs import Contender, first_rounds, make_variants
from comparison.plan.options import CompareConfig
from comparison.run.store import Run


def rounds(rng, count, ratio=1.0, noise=0.1, shares=(0.5, 0.25, 0.25), slow_start=1.3):
    """Images per second of an implementation and of a reference in `count` rounds of rotating order.

    Args:
      ratio: how many times as fast the implementation truly is.
      noise: standard deviation of one implementation's log speed over the rounds, without the slow start.
      shares: parts of that variance. First the machine's drift: a trend, waves and at times a step, which affect
        neighbouring runs alike. Then each run's own jitter. Then outliers: one run in twenty is slower, at times
        much slower.
      slow_start: the very first run takes this many times as long.
    """
    runs = 2 * count
    drift, jitter, outliers = (noise * np.sqrt(share) for share in shares)
    x = np.linspace(0, 1, runs)
    course = rng.normal() * x + np.sin(2 * np.pi * (x * rng.uniform(0.5, 2) + rng.random()))
    if rng.random() < 0.5:
        course += x > rng.random()
    log_seconds = (course - course.mean()) / course.std() * drift + rng.normal(0, jitter, runs)
    probability = 0.05
    scale = outliers / np.sqrt(2 * probability - probability**2)  # of the exponential distribution below
    log_seconds += (rng.random(runs) < probability) * rng.exponential(scale, runs)
    log_seconds[0] += np.log(slow_start)
    first, second = log_seconds[0::2], log_seconds[1::2]
    swapped = np.arange(count) % 2 == 1
    reference, implementation = np.where(swapped, second, first), np.where(swapped, first, second)
    return ratio * np.exp(-implementation), np.exp(-reference)


# --- Others' load: seen by the measurement or not ---


def burst(rng, count):
    """Other programs slow one run in five, up to twentyfold where threads spin; their load is measured.

    Returns (as the functions below):
      Of each run, the increase of its log duration, and the share of the cores that others were measured to use.
    """
    hit = rng.random(count) < 0.2
    share = rng.uniform(0.15, 0.9, count) * hit
    return share * rng.uniform(0.5, 3.3, count), share


def short_burst(rng, count):
    """Other programs slow one run in twenty, for too short a time to show in the measured load."""
    hit = rng.random(count) < 0.05
    return rng.exponential(0.7, count) * hit, rng.uniform(0, 0.08, count)


def steal(rng, count):
    """Other tenants use between none and half of the processors, in waves that last several runs."""
    wave = np.sin(2 * np.pi * (np.arange(count) / rng.uniform(6, 20) + rng.random()))
    share = np.clip(0.5 * wave + rng.normal(0, 0.05, count), 0, 0.5)
    return -np.log1p(-share), share


def busy(rng, count):
    """Other programs keep the machine busy all the time."""
    share = rng.uniform(0.3, 0.6, count)
    return share * rng.uniform(0.3, 2, count), share


def quiet(rng, count):
    return np.zeros(count), rng.uniform(0, 0.05, count)


# --- Turns of programs that are alive together, see comparison/run/turns.py ---


@dataclass(frozen=True)
class Machine:
    """A machine, and what the turns on it suffer. All sizes are of the logarithm of a duration.

    Attributes:
      between: standard deviation between processes of the same program.
      noise: standard deviation of a turn's own noise, which is lognormal.
      correlated: autocorrelation of that noise from cycle to cycle.
      stalls: share of the turns that stall, by 0.5 on average, exponentially distributed.
      walk: standard deviation of the machine's random walk from one turn to the next.
      wave: amplitude of its sinusoid, with a period of 20 to 200 turns; 0.35 is a factor of two in 2 to 20 seconds.
      bursts: share of the turns that other programs slow, 1.2 to 3 times, in bursts of three turns on average.
      seen: share of these turns in which the load meter sees them.
    """

    between: float = 0.02
    noise: float = 0.1
    correlated: float = 0.0
    stalls: float = 0.02
    walk: float = 0.02
    wave: float = 0.35
    bursts: float = 0.0
    seen: float = 1.0

    def round(self, rng, cycles, ratio):
        """Speeds of an implementation and of a reference in each cycle, and the share of the cores others used."""
        order = _orders(rng, cycles)
        slots = np.arange(2 * cycles)
        course = rng.normal(0, self.walk, 2 * cycles).cumsum()
        course += self.wave * np.sin(2 * np.pi * (slots / rng.uniform(20, 200) + rng.random()))
        own = rng.normal(0, self.noise, (cycles, 2))
        for cycle in range(1, cycles) if self.correlated else ():
            own[cycle] = self.correlated * own[cycle - 1] + np.sqrt(1 - self.correlated**2) * own[cycle]
        own += rng.exponential(0.5, (cycles, 2)) * (rng.random((cycles, 2)) < self.stalls)
        hit = _in_bursts(rng, 2 * cycles, self.bursts)
        others = hit * rng.uniform(np.log(1.2), np.log(3), 2 * cycles)
        load = hit * (rng.random(2 * cycles) < self.seen) * 0.5
        place = 2 * np.arange(cycles)[:, None] + order
        durations = own + (course + others)[place] + rng.normal(0, self.between, 2)
        return np.array([ratio, 1.0]) * np.exp(-durations), load[place]


def _orders(rng, cycles):
    """0 or 1 for each row in each cycle: whether it is first or second; even cycles reverse the order before them."""
    first = rng.integers(0, 2, cycles)
    first[1::2] = 1 - first[: cycles - cycles % 2 : 2]
    return np.stack([first, 1 - first], axis=1)


def _in_bursts(rng, count, share, length=3):
    """For each turn whether it is in a burst."""
    begins = rng.random(count) < share / length
    return np.convolve(begins, np.ones(length))[:count] > 0


def in_turns(rng, machine, ratio=1.0, cycles=20, **options):
    """The ratio that a comparison of two rows with these options finds, and its number of rounds.

    All rounds that comparison/measure/rounds.py asks for are made, with the turns of `machine`.
    """
    config = CompareConfig(implementations=["tf", "pt"], **options)
    variants = make_variants(config, config.train_config())
    made = {}

    def make(number):
        speeds, load = machine.round(rng, cycles, ratio)
        made[number] = {name: run(name, number, speeds[:, row], load[:, row]) for row, name in enumerate(("pt", "tf"))}

    def read(job):
        return made[job.round][job.implementation] if job.round in made else None

    for number in range(1, first_rounds(config) + 1):
        make(number)
    while missing := further_rounds(config, variants, read)[1]:
        make(missing[0].round)
    return speed_ratio(*(row(*(runs[name] for runs in made.values())) for name in ("tf", "pt")))


def row(*runs, **table):
    """A row with these runs, in a table of its own."""
    return Row(Table(0, {}, **table), runs[0].record.contender, [*runs])


def run(name, number, speeds, load=None, steps_per_epoch=40, steps=10):
    """The run of row `name` in a round, whose turns of `steps` steps had these speeds and this load by others."""
    total = steps * len(speeds)
    plan = Plan.make(steps_per_epoch, 1, -(-total // steps_per_epoch), total)
    result = SimpleNamespace(plan=plan, resumed_from=None, warmup_steps=10)
    record = SimpleNamespace(contender=Contender(name, "plain"), seed=0, round=number, session=1, group=1, started="")
    turns = [
        TurnLine(
            kind="turn",
            cycle=index + 1,
            first_step=index * steps + 1,
            last_step=(index + 1) * steps,
            images=1,
            seconds=1 / speed,
            ended=index,
            own_load=0.5,
            other_load=0.0 if load is None else load[index],
        )
        for index, speed in enumerate(speeds)
    ]
    return Run(record, None, result, turns=turns)
