"""Makes the launcher that --launcher names, and checks that the other options fit it."""

from collections.abc import Callable
from pathlib import Path

from common.platform.errors import UserError
from common.spec.options import TrainConfig
from comparison.plan.jobs import Variant
from comparison.plan.options import CompareConfig
from comparison.run.launchers import Launcher
from comparison.run.launchers.job_folder import JobFolder
from comparison.run.launchers.queued import Queue, QueuedLauncher
from comparison.run.launchers.ray_jobs import RayJobs
from comparison.run.launchers.slurm import Slurm
from comparison.run.launchers.this_machine import ThisMachine

QUEUES: dict[str, type[Slurm] | type[RayJobs]] = {"slurm": Slurm, "ray": RayJobs}  # by the value of --launcher


def make_launcher(options: CompareConfig, folder: Path, say: Callable[[str], None]) -> Launcher:
    """The launcher that the options name. Raises UserError if jobs of the comparison may still run elsewhere."""
    if options.launcher == "local":
        _check_none_runs(folder)
        return ThisMachine(folder)
    _check_none_runs(folder, besides=options.launcher)
    return QueuedLauncher(_queue(options.launcher, options.launcher_options), folder, say)


def check_launcher(options: CompareConfig, base: TrainConfig, variants: list[Variant]) -> None:
    """Raises UserError if the options ask for something that their launcher or its machines can't do."""
    several = [variant.config.num_nodes for variant in variants if variant.config.num_nodes not in ("auto", 1)]
    if options.launcher == "local":
        if several:
            raise UserError(f"--num-nodes {several[0]}: --launcher local is this machine; use slurm or ray")
        if "launcher_options" in options.model_fields_set:
            raise UserError("--launcher-options: only for --launcher slurm or ray")
        return
    _queue(options.launcher, options.launcher_options).check()
    if base.accelerator == "auto":
        raise UserError(
            f"--launcher {options.launcher}: needs --accelerator cpu or gpu, since nodes may differ from this machine"
        )
    for variant in variants:
        config = variant.config
        if config.nodes > 1 and config.devices == "auto":
            raise UserError(f"--num-nodes {config.nodes}: needs --devices N, the number of devices of each node")
    swept = {name for variant in variants for name, _ in variant.values}
    if "devices" in swept and base.accelerator == "cpu" and base.threads_per_device == "auto":
        raise UserError(
            f"--sweep devices: with --launcher {options.launcher} needs --threads-per-device N, the same for all"
        )


def _queue(name: str, options: str | None = None) -> Queue:
    return QUEUES[name]() if options is None else QUEUES[name](options)


def _check_none_runs(folder: Path, besides: str = "") -> None:
    """Raises UserError if a job of another launcher than `besides` may still run for the comparison."""
    unfinished: dict[str, list[str]] = {}
    for job in JobFolder.all_of(folder):
        submitted = job.submitted()
        if submitted.launcher != besides and not job.is_done:
            unfinished.setdefault(submitted.launcher, []).append(submitted.number)
    for name, numbers in unfinished.items():
        queue, shown = _queue(name), ", ".join(numbers)
        states = queue.states(numbers)
        if states is None:
            raise UserError(
                f"{folder}: {queue.title} does not answer, and its jobs {shown} may still run for this comparison; if"
                f" they do not, remove {folder / 'jobs'}"
            )
        if states:
            raise UserError(
                f"{folder}: jobs {', '.join(states)} of {queue.title} still run for this comparison; add"
                f" --launcher {name} to wait for them"
            )
