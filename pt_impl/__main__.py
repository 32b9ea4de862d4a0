"""`python -m pt_impl`, alone or under torchrun: reads the options, then trains, evaluates or predicts."""

import common.platform.quiet_start  # noqa: F401 - see there
from common.platform.program import as_program

# Worker processes import this file under another name; only the one that was started trains from here.
if __name__ == "__main__":
    with as_program("python -m pt_impl"):
        # Imported here: Ctrl-C meanwhile ends in one line.
        from common.resolve import prepare_processor
        from common.trained.command import parse_command

        command = parse_command(
            "pt_impl", "Trains a network with PyTorch (loop written out; DistributedDataParallel, FSDP)."
        )
        used = command.read_used()
        prepare_processor(command.config, "torch", "pt_impl.probe")
        # And here: a mistake in the options is told at once, not after PyTorch has loaded.
        from pt_impl.launch import classify, main

        if used is None:
            main(command.config)
        else:
            command.show("pt", used, classify(command.config, used))
