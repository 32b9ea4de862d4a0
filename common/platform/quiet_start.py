"""Imported first by every program: until it is in `as_program`, Ctrl-C ends it without a stack trace of its imports."""

import signal

if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # not where Ctrl-C is ignored
    signal.signal(signal.SIGINT, signal.SIG_DFL)
