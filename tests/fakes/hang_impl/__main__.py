"""Hangs after step 30, with a child process that ignores SIGTERM; writes both process ids to the file `pids`."""

import os
import subprocess
import sys
import time
from pathlib import Path

from fake_training import run

IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def hang():
    child = subprocess.Popen([sys.executable, "-c", IGNORES])
    folder = Path(sys.argv[sys.argv.index("--run-dir") + 1])
    folder.joinpath("pids.tmp").write_text(f"{os.getpid()} {child.pid}")
    folder.joinpath("pids.tmp").rename(folder / "pids")
    time.sleep(600)


run("hang", at_step=(30, hang))
