"""Imported as `common` if a program of this folder was started by its path. Ends it, and says how to start it."""

import sys
from pathlib import Path

program = Path(sys.argv[0])
sys.exit(
    f"{program.name}: start it from the project's folder as a module: python -m exercises.{program.stem}"
    f" (with torchrun: torchrun ... -m exercises.{program.stem})"
)
