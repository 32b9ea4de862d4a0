"""`python -m ptl_impl`: reads the options, then trains. `--help` prints them all."""

from common.platform.errors import as_program
from common.platform.launch import Launch
from common.resolve import prepare_processor
from common.spec.command_line import parse_train_config

with as_program("python -m ptl_impl", shown=Launch.read().is_first):
    config = parse_train_config("ptl_impl", "Trains a network with Lightning (Trainer with the ddp strategy).")
    prepare_processor(config, "torch", "pt_impl.probe")
    # Imported here: a mistake in the options is told at once, not after Lightning has loaded.
    from ptl_impl.launch import main

    main(config)
