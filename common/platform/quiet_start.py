"""Every program imports this module first. Ctrl-C before `as_program` then ends it without a stack trace."""

import signal

if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # not where Ctrl-C is ignored
    signal.signal(signal.SIGINT, signal.SIG_DFL)
