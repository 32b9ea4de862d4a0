"""`python -m ptl_impl`: reads the options, then trains, evaluates or predicts. `--help` prints them all."""

import common.platform.quiet_start  # noqa: F401 - see there
from common.platform.program import as_program

with as_program("python -m ptl_impl"):
    # Imported here: Ctrl-C meanwhile ends in one line.
    from common.resolve import prepare_processor
    from common.trained.command import parse_command

    command = parse_command("ptl_impl", "Trains a network with Lightning (Trainer and its strategies).")
    used = command.read_used()
    prepare_processor(command.config, "torch", "pt_impl.probe")
    # And here: a mistake in the options is told at once, not after Lightning has loaded.
    from ptl_impl.launch import classify, main

    if used is None:
        main(command.config)
    else:
        command.show("ptl", used, classify(command.config, used))
