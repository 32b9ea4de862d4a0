"""Begins or continues a comparison: its folder, and its request, which is stored there."""

import os
import shlex
import sys
from pathlib import Path

from rich.console import Console

from common.data.datasets import data_spec, num_examples
from common.experiment import Experiment
from common.implementations import IMPLEMENTATIONS
from common.platform.cli import as_typed, option_name
from common.platform.errors import UserError
from common.record.loggers import check_loggers
from common.resolve import tutorial_obstacle
from common.spec.options import Mode, TrainConfig
from common.spec.own_network import NETWORK_FILES, copy_into, own_files, prepare_network, read_prepared
from comparison.plan.jobs import make_variants
from comparison.plan.options import REPORT_WITH, RESUME_WITH, CompareConfig
from comparison.plan.request import Request, hold_folder, make_output_dir, take_request
from comparison.run.devices import same_devices
from comparison.run.program import now


def prepare_comparison(given: CompareConfig, console: Console) -> tuple[Path, Request]:
    """The folder of the comparison, and its request, which is stored there. Downloads data sets that are missing.

    Raises:
      UserError: something can't be run or read. This is found before any run is started.
    """
    command = shlex.join(["python", "compare.py", *sys.argv[1:]])
    given = given.with_absolute_paths(given.model_fields_set)
    if given.report_only:
        stored = take_request(given.report_only, "--report-only")
        options = given.applied_to(stored.options, given.report_only, REPORT_WITH)
        return given.report_only, stored.model_copy(update={"options": options})
    if given.resume:
        stored = take_request(given.resume, "--resume")
        options = given.applied_to(stored.options, given.resume, RESUME_WITH)
        _check(options, stored.config)
        request = stored.model_copy(update={"options": options, "commands": [*stored.commands, command]})
        request.write(given.resume)
        return given.resume, request
    given = given.with_absolute_paths(["data_dir"])
    if given.has_own_network:
        given = _with_own_network(given, console)
    config = given.train_config()
    _check(given, config)
    folder = make_output_dir(given)
    hold_folder(folder, "--output-dir")
    if given.has_own_network:
        data = data_spec(config)
        copy = copy_into(given.model, folder, data.image_shape, len(data.class_names))
        given, config = given.model_copy(update={"model": copy}), config.replace(model=copy)
    config, warnings = same_devices(config, given.interpreters(), given.timeout)
    for warning in warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    if not given.mode:
        given = given.with_mode(*default_modes(given, config, console))
        config = config.replace(mode=given.mode[0])
    request = Request(
        schema_version=2, created=now(), commands=[command], options=given, config=config, warnings=warnings
    )
    request.write(folder)
    return folder, request


def _with_own_network(given: CompareConfig, console: Console) -> CompareConfig:
    """The options with the implementations for which the user's folder has a file, unless they are given.

    Pairs the layers of its files, in some seconds. Raises UserError where one is another network than the first.
    """
    given.check_implementations()
    has = {path.stem for path in own_files(Path(given.model))}
    if "implementations" not in given.model_fields_set:
        names = [name for name in IMPLEMENTATIONS if IMPLEMENTATIONS[name].network_file in has]
        usual = [name for name in given.implementations if name in names]
        given = given.model_copy(update={"implementations": usual or names[:1]})
    files = (IMPLEMENTATIONS[name].network_file for name in given.implementations if name in IMPLEMENTATIONS)
    frameworks = list(dict.fromkeys(files))
    console.print(f"pairing the layers of {', '.join(NETWORK_FILES[name] for name in frameworks)} in {given.model}")
    data = data_spec(given.train_config())
    for seed in given.seeds:
        place = prepare_network(given.model, data.image_shape, len(data.class_names), frameworks, seed)
    if read_prepared(place).drops:
        console.print(
            f"note: {given.network_name} has dropout, for which each framework draws random numbers of its own: the"
            " proof runs without dropout",
            soft_wrap=True,
        )
    return given


def _check(options: CompareConfig, config: TrainConfig) -> None:
    """Raises UserError for an option that some run can't follow."""
    options.check_implementations()
    check_loggers(options.logger)
    options.interpreters()
    for variant in make_variants(options, config):
        nodes = variant.config.nodes
        if nodes > int(os.environ.get("SLURM_JOB_NUM_NODES", "1")):
            raise UserError(
                f"--num-nodes {nodes}: needs a Slurm job with so many nodes:"
                f" sbatch --nodes={nodes} launch/slurm/compare.slurm"
            )
        if nodes > 1 and variant.config.devices == "auto":
            raise UserError(f"--num-nodes {nodes}: needs --devices N, the number of devices of each node")
        experiment = Experiment.make(variant.config)
        for option in ("target_accuracy", "check_learning"):
            if (value := getattr(options, option)) and not experiment.network.scores_classes:
                why = f"--model {options.network_name} has other outputs than a score for each class"
                raise UserError(f"{option_name(option)} {as_typed(value)}: {why}")


def default_modes(options: CompareConfig, config: TrainConfig, console: Console) -> list[Mode]:
    """Tutorial and plain, or plain alone where the tutorials' programs can't run or would be another training."""
    for variant in make_variants(options, config):
        known = variant.config if variant.config.devices != "auto" else variant.config.replace(devices=1)
        shards, (examples, _) = known.num_shards, num_examples(known)
        obstacle = tutorial_obstacle(known)
        if not obstacle and examples % shards:
            obstacle = f"{shards} devices can't share {examples:,} training examples equally"
        if obstacle:
            console.print(f"note: only --mode plain: {obstacle}", soft_wrap=True)
            return ["plain"]
    return ["tutorial", "plain"]
