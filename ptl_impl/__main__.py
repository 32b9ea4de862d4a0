"""`python -m ptl_impl`; `--help` prints all options."""

from common.main import main

main("ptl")
