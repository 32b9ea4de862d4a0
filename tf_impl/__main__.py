"""`python -m tf_impl`; `--help` prints all options."""

from common.main import main

main("tf")
