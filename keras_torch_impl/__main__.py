"""`python -m keras_torch_impl`; `--help` prints all options."""

from common.main import main

main("keras_torch")
