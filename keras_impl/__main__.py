"""`python -m keras_impl`; `--help` prints all options."""

from common.main import main

main("keras")
