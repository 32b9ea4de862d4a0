"""`python -m pt_impl`, alone or under torchrun; `--help` prints all options."""

from common.main import main

if __name__ == "__main__":  # worker processes import this file under another name
    main("pt")
