"""`python -m ptl_impl`: reads the options, then trains, evaluates or predicts. `--help` prints all options."""

import common.platform.quiet_start  # noqa: F401 - see there
from common.platform.program import as_program

with as_program("python -m ptl_impl"):
    # Imported inside `as_program`: Ctrl-C during these imports prints one line, not a stack trace.
    from common.resolve import prepare_processor
    from common.trained.command import parse_command
    from common.trained.use import read_used, show

    command = parse_command("ptl_impl", "Trains a network with Lightning (Trainer and its strategies).")
    used = read_used(command)
    prepare_processor(command.config, "torch", "pt_impl.probe")
    # Imported late: a mistake in the options is reported at once, not after Lightning has loaded.
    from ptl_impl.launch import classify, main

    if used is None:
        main(command.config)
    else:
        show(command, "ptl", used, classify(command.config, used.dataset))
