"""`python -m pt_impl`, alone or under torchrun: reads the options, then trains, evaluates or predicts."""

import common.platform.quiet_start  # noqa: F401 - see there
from common.platform.program import as_program

# Worker processes import this file under another name, so only the process that was started runs this block.
if __name__ == "__main__":
    with as_program("python -m pt_impl"):
        # Imported inside `as_program`: Ctrl-C during these imports prints one line, not a stack trace.
        from common.resolve import prepare_processor
        from common.trained.command import parse_command
        from common.trained.use import read_used, show

        command = parse_command(
            "pt_impl", "Trains a network with PyTorch (loop written out; DistributedDataParallel, FSDP)."
        )
        used = read_used(command)
        prepare_processor(command.config, "torch", "pt_impl.probe")
        # Imported late: a mistake in the options is reported at once, not after PyTorch has loaded.
        from pt_impl.launch import classify, main

        if used is None:
            main(command.config)
        else:
            show(command, "pt", used, classify(command.config, used.dataset))
