"""`python -m pt_impl`, alone or under torchrun: reads the options, then trains. `--help` prints them all."""

from common.platform.errors import as_program
from common.platform.launch import Launch
from common.resolve import prepare_processor
from common.spec.command_line import parse_train_config

# Worker processes import this file under another name; only the one that was started trains from here.
if __name__ == "__main__":
    with as_program("python -m pt_impl", shown=Launch.read().is_first):
        config = parse_train_config("pt_impl", "Trains a network with PyTorch (DistributedDataParallel).")
        prepare_processor(config, "torch", "pt_impl.probe")
        # Imported here: a mistake in the options is told at once, not after PyTorch has loaded.
        from pt_impl.launch import main

        main(config)
