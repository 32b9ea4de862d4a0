"""Exits with status 0, but its result.json is not a valid result."""

import sys
from pathlib import Path

Path(sys.argv[sys.argv.index("--run-dir") + 1], "result.json").write_text('{"schema_version": 1}')
