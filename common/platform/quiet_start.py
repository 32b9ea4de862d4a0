"""Every program imports this module first. Ctrl-C before `as_program` then ends it without a stack trace."""

import gc
import os
import signal

# compare.py sets it where no start-up time is shown. The garbage collector then stays off until the first step ends:
# it would take a sixth to a fifth of the time that the frameworks' imports take, and find nothing.
UNTIMED_VARIABLE = "UNTIMED_START"

if UNTIMED_VARIABLE in os.environ:
    gc.disable()

if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # not where Ctrl-C is ignored
    signal.signal(signal.SIGINT, signal.SIG_DFL)
