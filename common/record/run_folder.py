"""Run folders: makes new ones and refuses used ones."""

import itertools
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.files import write_json_model
from common.record.loggers import check_loggers
from common.record.results import CONFIG_FILE, METRICS_FILE, RESULT_FILE


def new_run_dir(name: str, base: Path = Path("runs")) -> Path:
    """Makes a new folder under `base`. Its name is the time, then `name`, then a number if needed."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    try:
        base.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = base / (f"{stamp}-{name}" if number == 1 else f"{stamp}-{name}-{number}")
            with suppress(FileExistsError):
                path.mkdir()
                break
    except OSError as error:
        raise UserError(f"no folder can be made under {base}: {error.strerror}") from None
    return path


def with_run_dir(experiment: Experiment, name: str) -> Experiment:
    """Makes the run folder and writes its `config.json`; returns the experiment with that folder.

    Args:
      name: part of the name of a new folder, if the configuration names no folder.

    Raises UserError if the folder can't be made, or contains a run already. One that is resumed may be unfinished.
    """
    config = experiment.config
    check_loggers(config.logger)
    resume, run_dir = config.resume, config.run_dir
    if run_dir is None:
        run_dir = new_run_dir(f"{name}-{config.dataset_name}-{config.network_name}")
    else:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--run-dir {run_dir}: {error.strerror}") from None
        resumed = resume == "auto" or (resume and resume.absolute().is_relative_to(run_dir.absolute()))
        if (run_dir / RESULT_FILE).exists() or (not resumed and (run_dir / METRICS_FILE).exists()):
            raise UserError(f"--run-dir {run_dir}: holds a run already; name another folder")
    config = config.replace(run_dir=run_dir)
    write_json_model(run_dir / CONFIG_FILE, config)
    return replace(experiment, config=config)
