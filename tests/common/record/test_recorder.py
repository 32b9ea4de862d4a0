import pytest

from common.experiment import Experiment
from common.platform.errors import UserError
from common.record import monitor
from common.record.recorder import Framework, Recorder
from common.record.results import EpochLine, TurnLine, read_metrics, read_result, read_step_losses
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.record.turns import Turn
from common.spec.options import TrainConfig


def flat(steps):
    """(loss, correct) of each step, including the steps of a call that took several."""
    for loss, correct in steps:
        yield from zip(loss, correct, strict=True) if isinstance(loss, list) else [(loss, correct)]


class Fake(Framework):
    """Computes nothing; `log` has the calls of `fetch` and `synchronize`."""

    name, title = "fake", "Fake"

    def __init__(self):
        self.log = []

    def device_name(self, config):
        return "none"

    def fetch(self, steps, numbers):
        self.log.append(("fetch", len(steps)))
        return flat(steps), numbers

    def synchronize(self):
        self.log.append("synchronize")


def make(run_dir, **options):
    """A recorder, and a log of its `fetch` and `synchronize` calls. 3 epochs of 4 steps: 3 of 10 examples, one of 5."""
    options = {"train_size": 35, "batch_size": 10, "epochs": 3, "accelerator": "cpu", "devices": 1, **options}
    config = TrainConfig(threads_per_device=1, run_dir=run_dir, **options)
    fake, experiment = Fake(), with_run_dir(Experiment.make(config), "fake")
    return Recorder(fake, experiment, Timeline.begin(1), rank=0, measures=True), fake.log


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test changes `clock.now`; the first process started at 100."""

    class Clock:
        now = 110.0

    monkeypatch.setattr("time.perf_counter", lambda: Clock.now)  # in all modules
    monkeypatch.setattr("common.record.timeline.process_start", lambda pid: 100.0)
    monkeypatch.setattr(monitor, "peak_memory_bytes", lambda pid: 7)
    return Clock


def train(recorder, clock, epochs=3, calls=(1, 1, 1, 1), losses=(1.0,) * 14, between=0, compilation=0):
    """Takes steps of a second, in calls of so many; an evaluation takes 3 seconds."""
    with recorder:
        for epoch in range(1, epochs + 1):
            recorder.start_epoch()
            for number in calls:
                clock.now += number + (0 if recorder.steps_done else compilation)
                first = recorder.steps_done - recorder.plan.all_steps(epoch).start + 1
                recorder.step(list(losses[first : first + number]), [5] * number, number)
            recorder.end_training()
            clock.now += between  # counts neither for training nor for evaluation
            recorder.start_evaluation()
            clock.now += 3
            recorder.end_epoch(71.0, 284, 355)
            clock.now += between


def finish(recorder):
    recorder.finish(recorder.experiment.initial_weights, (), None, None)
    return read_result(recorder.run_dir)


def test_start_up_training_and_evaluation_are_kept_apart(tmp_path, clock):
    recorder, log = make(tmp_path)
    train(recorder, clock, between=50, compilation=4)
    result = finish(recorder)
    assert result.startup_seconds == 15
    assert result.epoch_train_seconds == [3, 4, 4]
    assert result.eval_seconds == [3, 3, 3]
    assert result.warmup_steps == 6  # half of 12
    # Steps 7 to 12 take one second each and have 10, 5, 10, 10, 10 and 5 examples.
    assert result.images_per_second == pytest.approx(50 / 6)
    assert result.wall_seconds == clock.now - 100 and result.peak_memory_bytes == 7
    # Only the test's own clock advances: 10 seconds until the recorder is made, then 5 until the end of the first step.
    phases = {"imports": 10, "data": 0, "build": 5, "training": 11, "evaluation": 9}
    phases |= {"between": 250, "rest": 50, "waiting": 0}
    assert result.phase_seconds == phases and sum(phases.values()) == result.wall_seconds
    assert log.count("synchronize") == 2 + 3  # after the first step, after warm-up, at the end of each epoch
    assert [item for item in log if item != "synchronize"] == [("fetch", 4)] * 3


def test_processes_with_other_data_or_options_do_not_train_together(tmp_path, clock, monkeypatch):
    recorder, _ = make(tmp_path)

    def fetch(steps, numbers):
        """As if another process had the same code, but other data, other options and another checkpoint."""
        return flat(steps), [2 * number + differs for number, differs in zip(numbers, (0, 0, 1, 1, 1), strict=True)]

    monkeypatch.setattr(recorder.framework, "fetch", fetch)
    with pytest.raises(UserError, match="differ in data and options and checkpoint: all nodes need"):
        train(recorder, clock)


@pytest.mark.parametrize(
    ("turns", "waited_after", "timed"),
    [
        # The evaluation between steps 8 and 9 is timed apart.
        ([Turn(1, 7, 9), Turn(2, 10, 12)], [9, 12], [(1, 8, 9, 2), (2, 11, 12, 2)]),
        # A turn of an epoch begins with the evaluation before it.
        ([Turn(1, 8, 8), Turn(2, 8, 12)], [8, 12], [(2, 9, 12, 4)]),
        # The second turn is told of a step that was taken before it began; it times nothing and has no line.
        ([Turn(1, 7, 9), Turn(2, 8, 10), Turn(3, 11, 12)], [9, 10, 12], [(1, 8, 9, 2), (3, 12, 12, 1)]),
    ],
)
def test_waiting_for_a_turn_is_no_time_of_training(tmp_path, clock, monkeypatch, turns, waited_after, timed):
    """The first wait is after start-up, whose step does not tell the speed, and the second after warm-up, six steps."""
    waits, turns = [], [Turn(0, 6, 6), *turns, Turn(0, 12, 12)]

    class Turns:
        are_taken = True

        def wait(self, done, seconds_per_step, steps_per_call):
            clock.now += 1000
            waits.append((done, seconds_per_step))
            return turns.pop(0)

        def close(self):
            pass

    monkeypatch.setattr("common.record.recorder.Turns", Turns)
    recorder, _ = make(tmp_path)
    train(recorder, clock)
    result = finish(recorder)
    assert waits == [(1, None), *((step, 1) for step in (6, *waited_after))]
    lines = [(line.cycle, line.first_step, line.last_step, line.seconds) for line in read_metrics(tmp_path, TurnLine)]
    assert lines == timed
    assert result.epoch_train_seconds == [3, 4, 4] and result.eval_seconds == [3, 3, 3]
    assert result.phase_seconds["waiting"] == 1000 * len(waits) and result.phase_seconds["training"] == 11
    images = sum(recorder.plan.images(first, last) for _, first, last, _ in timed)
    assert result.images_per_second == pytest.approx(images / sum(seconds for *_, seconds in timed))


def test_losses_are_weighted_by_the_size_of_their_batch(tmp_path, clock):
    recorder, _ = make(tmp_path, epochs=1)
    train(recorder, clock, 1, losses=(1.0, 2.0, 3.0, 8.0))
    assert read_step_losses(tmp_path) == [1, 2, 3, 8]
    (epoch,) = read_metrics(tmp_path, EpochLine)
    assert epoch.train_loss == pytest.approx((10 + 20 + 30 + 40) / 35)
    assert epoch.train_accuracy == 20 / 35
    assert (epoch.test_loss, epoch.test_accuracy) == (0.2, 0.8)


def test_a_folder_that_holds_a_run_is_refused_but_not_one_of_a_dry_run(tmp_path):
    experiment = Experiment.make(TrainConfig(run_dir=tmp_path))
    for file in ("config.json", "metrics.jsonl"):
        with_run_dir(experiment, "name")
        (tmp_path / file).touch()
    with pytest.raises(UserError, match="holds a run already"):
        with_run_dir(experiment, "name")


def test_a_call_may_take_more_steps_than_the_next_look_is_away(tmp_path, clock):
    """As with Keras's steps_per_execution: start-up and warm-up then end with the call."""
    recorder, log = make(tmp_path, train_size=140, log_every_n_steps=5)  # 3 epochs of 14 steps
    train(recorder, clock, calls=(4, 4, 4, 2))
    result = finish(recorder)
    assert result.startup_seconds == 14  # four steps of one second each, after the first 10 seconds
    assert result.epoch_train_seconds == [10, 14, 14]
    assert result.warmup_steps == 12 and result.images_per_second == 10  # each image takes a tenth of a second
    assert len(read_step_losses(tmp_path)) == 42
    assert [item for item in log if item != "synchronize"] == [("fetch", calls) for calls in (2, 1, 1, *[1] * 8)]
