import os
import signal

from fake_training import run

run("dying", at_step=(30, lambda: os.kill(os.getpid(), signal.SIGKILL)))
