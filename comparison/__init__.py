"""The parts of compare.py, a folder each: plan, run, prove, measure, show. They import no framework.

In a notebook: `comparison.load(DIR)`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comparison.measure.comparison import Comparison


def load(folder: str | Path) -> "Comparison":
    """Reads the folder of a comparison, which may still be running.

    Raises:
      UserError: the folder has no comparison, or the comparison is of another version.
    """
    # Here, since pandas and SciPy take seconds, and --help imports this file.
    from comparison.measure.comparison import Comparison, find_runs
    from comparison.plan.request import Request

    folder = Path(folder)
    request = Request.read(folder, "load")
    runs, missing = find_runs(folder, request)
    return Comparison(folder, request, runs, len(missing))
