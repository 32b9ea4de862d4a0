"""The program of every implementation, `python -m NAME_impl`: train, evaluate or predict."""

import common.platform.quiet_start  # noqa: F401 - see there; isort: skip

import importlib
import sys

from common.platform.ending import as_program

ABOUT_WORDS = "The words evaluate and predict in front put a trained network to use; each has its own --help."


def main(name: str, folder: str = "") -> None:
    """Reads the options, then trains, evaluates or predicts. The first word "train" may be left out.

    Args:
      name: name of the implementation, such as `pt`.
      folder: its package, if it is not `NAME_impl`.
    """
    folder = folder or f"{name}_impl"
    with as_program(f"python -m {folder}"):
        # Imported inside `as_program`: Ctrl-C during these imports prints one line, not a stack trace.
        from common.evaluate_predict import USES, dataset_to_use, show_use
        from common.experiment import Experiment
        from common.implementations import IMPLEMENTATIONS, PRECISION_MODULES, interpreter_of
        from common.platform.cli import parse_options
        from common.platform.errors import UserError
        from common.resolve import prepare_processor
        from common.spec.options import TrainConfig

        if name not in IMPLEMENTATIONS:
            raise UserError(f"{folder}: common/implementations.py has no entry {name!r}")
        implementation = IMPLEMENTATIONS[name]
        word, *options = sys.argv[1:] if sys.argv[1:2] and not sys.argv[1].startswith("-") else ["train", *sys.argv[1:]]
        if word == "train":
            about = f"Trains a network with {implementation.title} ({implementation.about}). {ABOUT_WORDS}"
            use, config = None, parse_options(TrainConfig, f"python -m {folder}", about, options)
            if config.mode not in implementation.modes:
                modes = " or ".join(implementation.modes)
                raise UserError(f"--mode {config.mode}: {implementation.title} has --mode {modes} alone")
        elif word in USES:
            schema, about = USES[word]
            use = parse_options(schema, f"python -m {folder} {word}", about, options)
            config = use.train_config()
            dataset = dataset_to_use(use, config)
        else:
            raise UserError(f"{word}: the first word should be train, which may be left out, evaluate or predict")
        try:
            if implementation.package in PRECISION_MODULES:
                prepare_processor(config, implementation.package, PRECISION_MODULES[implementation.package])
            # Imported late: a mistake in the options is reported at once, not after the framework has loaded.
            backend = importlib.import_module(f"{folder}.{implementation.backend}").BACKEND
        except ModuleNotFoundError as error:
            if error.name != implementation.package:
                raise
            own = interpreter_of(name)
            cure = f"start it with {own}" if own != sys.executable else "install what requirements.txt lists"
            raise UserError(f"{error.name} is not installed in {sys.prefix}; {cure}") from None
        if use is None:
            backend.run(config)
            return
        experiment = Experiment.make(backend.resolve(config), dataset)
        if not experiment.network.scores_classes:
            raise UserError(f"{word}: --model {config.model} has other outputs than a score for each class")
        with backend.errors_in_one_line(experiment.config, trains=False):
            logits = backend.classify(experiment)
        show_use(use, experiment, name, logits)
