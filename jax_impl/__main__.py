"""`python -m jax_impl`, alone or under torchrun; `--help` prints all options."""

from common.main import main

main("jax")
