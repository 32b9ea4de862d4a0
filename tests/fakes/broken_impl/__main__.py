"""Exits with 0, but its result is no result."""

import sys
from pathlib import Path

Path(sys.argv[sys.argv.index("--run-dir") + 1], "result.json").write_text('{"schema_version": 1}')
