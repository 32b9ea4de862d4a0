"""`python -m keras_jax_impl`; `--help` prints all options."""

from common.main import main

main("keras_jax")
