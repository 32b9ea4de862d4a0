"""A Flyte workflow: each of the three implementations trains in its own task, and another task compares them.

    python -m launch.flyte_workflow --epochs 2                                            on this machine
    flyte run launch/flyte_workflow.py compare_all --hyperparameters '{"epochs": 2}'     on a cluster

A training task runs a program, as a person would, and passes on the files that it has written. On a cluster, PyTorch
and Lightning have two nodes, on which Flyte's `Elastic` starts the program's processes as torchrun does. TensorFlow has
one node, without `Elastic`.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, create_model

from common.platform.cli import parse_options, to_arguments
from common.platform.ending import as_program
from common.platform.machine import REPOSITORY, code_sha256
from common.record.checkpoints import CHECKPOINTS_DIR, checkpoint_dirs
from common.record.predictions import Predictions
from common.record.results import WEIGHTS_FILE, EpochLine, read_metrics, read_result, read_step_losses
from common.record.run_folder import new_run_dir
from common.spec.options import TrainConfig
from comparison.lockstep import loss_differences

PROGRAM = "python -m launch.flyte_workflow"
INSTALL = "pip install -r requirements/flyte.txt -c constraints.txt"
try:
    import flyte
    from flyte.io import DataFrame, Dir, File
    from flyteplugins.pytorch.task import Elastic
except ImportError as error:
    raise SystemExit(f"{PROGRAM}: error: {error.name} is not installed: {INSTALL}") from None

NODES, GPUS = 2, 2  # nodes of PyTorch and Lightning on a cluster, and GPUs of each node
COPIED_CODE = ("common", "networks", "comparison", "launch", "tf_impl", "pt_impl", "ptl_impl")
POLL_SECONDS = 1.0

HYPERPARAMETERS = (
    *("dataset", "train_size", "model", "epochs", "max_steps", "batch_size", "optimizer", "learning_rate"),
    *("schedule", "precision", "seed", "accelerator"),
)
# Options of the implementations, with their types, bounds and defaults.
Hyperparameters = create_model(
    "Hyperparameters",
    __doc__="What the three train alike with.",
    data_dir=(str, "data"),  # Flyte's forms have no fields for paths
    **{name: (TrainConfig.model_fields[name].annotation, TrainConfig.model_fields[name]) for name in HYPERPARAMETERS},
)
DEFAULT_HYPERPARAMETERS = Hyperparameters()


class Trained(BaseModel):
    """The output of a training task.

    Attributes:
      test_accuracies: after each epoch, 0 to 1.
      predictions: a line for each test image: its label, the guess, and the guess's score.
      model: the weights, under canonical names.
      run_folder: all files that the run has written.
    """

    implementation: str
    test_accuracies: list[float]
    predictions: DataFrame
    model: File
    run_folder: Dir


def packages(path: Path) -> Iterator[str]:
    """The lines of a file of requirements and of the files that it names; Flyte would copy the first file alone."""
    for line in path.read_text().splitlines():
        requirement = line.partition("#")[0].strip()
        if requirement.startswith("-r "):
            yield from packages(path.parent / requirement.removeprefix("-r "))
        elif requirement:
            yield requirement


image = flyte.Image.from_debian_base(python_version=(3, 11), name="cnn-comparison").with_pip_packages(
    *packages(REPOSITORY / "requirements.txt"), *packages(REPOSITORY / "requirements" / "flyte.txt")
)
for folder in COPIED_CODE:
    image = image.with_source_folder(REPOSITORY / folder)


def environment(name: str, **more: Any) -> flyte.TaskEnvironment:
    # The same code trains the same hyperparameters only once: Flyte then takes the result from its cache.
    cache = flyte.Cache(behavior="auto", version_override=code_sha256())
    return flyte.TaskEnvironment(name=name, image=image, cache=cache, **more)


gpus = flyte.Resources(cpu=8, memory="16Gi", gpu=GPUS, shm="auto")
tensorflow = environment("tensorflow", resources=gpus)
pytorch = environment("pytorch", resources=gpus, plugin_config=Elastic(nnodes=NODES, nproc_per_node=GPUS))
tables = environment("tables", resources=flyte.Resources(cpu=2, memory="4Gi"), depends_on=[tensorflow, pytorch])


@tensorflow.task(retries=3)
def train_tf(hyperparameters: Hyperparameters) -> Trained | None:
    return train("tf", hyperparameters)


@pytorch.task(retries=3)
def train_pt(hyperparameters: Hyperparameters) -> Trained | None:
    return train("pt", hyperparameters)


@pytorch.task(retries=3)
def train_ptl(hyperparameters: Hyperparameters) -> Trained | None:
    return train("ptl", hyperparameters)


def train(implementation: str, hyperparameters: Hyperparameters) -> Trained | None:
    """Runs the program of an implementation to its end; of the processes that Elastic starts, only rank 0 has a result.

    Raises:
      RuntimeError: the program has failed. Flyte then tries again, and the program continues from the latest checkpoint
        that was kept.
    """
    run_dir, kept = find_run_dir(implementation), flyte.ctx().checkpoint
    if kept is not None:
        restore_checkpoint(kept, run_dir)
    config = TrainConfig(**hyperparameters.model_dump(), run_dir=run_dir, checkpoint_every="epoch", resume="auto")
    process = subprocess.Popen([sys.executable, "-m", f"{implementation}_impl", *to_arguments(config)], cwd=REPOSITORY)
    is_first = os.environ.get("RANK", "0") == "0"
    saved: Path | None = None
    while process.poll() is None:
        latest = next(checkpoint_dirs(run_dir), None)
        if is_first and kept is not None and latest != saved:
            keep_checkpoint(kept, latest)
            saved = latest
        time.sleep(POLL_SECONDS)
    if process.returncode:
        raise RuntimeError(f"python -m {implementation}_impl: exit status {process.returncode}")
    return collect_run(implementation, run_dir) if is_first else None


def find_run_dir(implementation: str) -> Path:
    """The run folder; on a cluster the same one for all processes of a task on a node, also after a restart."""
    context = flyte.ctx()
    if not context.is_in_cluster():
        return new_run_dir(f"flyte-{implementation}").absolute()
    return Path(tempfile.gettempdir()) / f"{context.action.run_name}-{context.action.name}" / "run"


def keep_checkpoint(kept: flyte.Checkpoint, checkpoint: Path) -> None:
    """Gives Flyte a copy of the checkpoint: the program may remove the original while Flyte saves it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(checkpoint, Path(folder) / checkpoint.name)
        kept.save_sync(folder)


def restore_checkpoint(kept: flyte.Checkpoint, run_dir: Path) -> None:
    """Copies the checkpoint of an earlier attempt to the place where --resume auto looks for it.

    The first process of a node copies it for the others, which wait.
    """
    local_rank, done = os.environ.get("LOCAL_RANK"), run_dir.with_name("restored")
    if local_rank in (None, "0") and not done.exists():
        checkpoint = kept.load_sync()
        if checkpoint is not None:
            shutil.copytree(checkpoint, run_dir / CHECKPOINTS_DIR, dirs_exist_ok=True)
    if local_rank == "0":
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
    while local_rank is not None and not done.exists():
        time.sleep(POLL_SECONDS)


def collect_run(implementation: str, run_dir: Path) -> Trained:
    predictions = Predictions.read(run_dir)
    table = {name: getattr(predictions, name) for name in ("labels", "guesses", "scores")}
    return Trained(
        implementation=implementation,
        test_accuracies=[epoch.test_accuracy for epoch in read_metrics(run_dir, EpochLine)],
        predictions=DataFrame.wrap_df(pd.DataFrame(table)),
        model=File.from_local_sync(str(run_dir / WEIGHTS_FILE)),
        run_folder=Dir.from_local_sync(str(run_dir)),
    )


@tables.task
async def compare(trained: list[Trained]) -> DataFrame:
    """A table with a line for each implementation; losses are compared with those of the first one."""
    folders = [Path(await result.run_folder.download()) for result in trained]
    lines = []
    for one, folder in zip(trained, folders, strict=True):
        result = read_result(folder)
        differences = loss_differences(read_step_losses(folders[0]), read_step_losses(folder))
        lines.append(
            {
                "implementation": one.implementation,
                "test_accuracy": one.test_accuracies[-1],
                "images_per_second": result.images_per_second,
                "process_seconds": sum(result.phase_seconds.values()),
                "devices": result.config.all_devices,
                "largest_loss_difference": differences.max(),
            }
        )
    return DataFrame.wrap_df(pd.DataFrame(lines))


class Compared(BaseModel):
    table: DataFrame
    trained: list[Trained]


@tables.task
async def compare_all(hyperparameters: Hyperparameters = DEFAULT_HYPERPARAMETERS) -> Compared:
    """The workflow. On one machine the implementations train one after the other, so that none slows down another."""
    tasks = (train_tf, train_pt, train_ptl)
    if flyte.ctx().is_in_cluster():
        trained = list(await asyncio.gather(*(task.aio(hyperparameters) for task in tasks)))
    else:
        trained = [await task.aio(hyperparameters) for task in tasks]
    return Compared(table=await compare(trained), trained=trained)


def main() -> None:
    hyperparameters = parse_options(
        Hyperparameters, PROGRAM, "Trains with the three implementations as Flyte's tasks, and compares them."
    )
    flyte.init()
    compared = flyte.with_runcontext(mode="local").run(compare_all, hyperparameters=hyperparameters).outputs()[0]
    print(pd.read_parquet(compared.table.uri).to_string(index=False))
    for result in compared.trained:
        print(f"{result.implementation}: {result.run_folder.path}")


if __name__ == "__main__":
    with as_program(PROGRAM):
        main()
