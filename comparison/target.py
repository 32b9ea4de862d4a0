"""Finds when runs reached the target accuracy."""

from dataclasses import dataclass

from comparison.store import Run, epochs_to


@dataclass(frozen=True)
class Reach:
    """When a run's test accuracy first reached the target: epochs, steps, seconds without start-up."""

    epochs: int
    steps: int
    seconds: float


def reach_target(run: Run, accuracy: float) -> Reach | None:
    """When a run first reached `accuracy`, checked after every epoch; None if it never did.

    The seconds include those of evaluations, as in MLPerf.
    """
    epochs = epochs_to(run, accuracy)
    if epochs is None:
        return None
    assert run.result is not None
    plan = run.result.plan
    lines = [line for line in run.epochs if line.epoch <= epochs]
    seconds = sum((line.train_seconds or 0.0) + line.eval_seconds for line in lines)
    return Reach(epochs, min(epochs * plan.steps_per_epoch, plan.total_steps), seconds)
