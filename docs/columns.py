"""Makes the table of the columns of rows in docs/columns.md; a test checks that the page is current.

python docs/columns.py
"""

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from comparison.measure.columns import columns_of
from comparison.measure.row import Row

PAGE = REPOSITORY / "docs" / "columns.md"


def make_page() -> str:
    """The page, whose section `rows` has a line for each column."""
    lines = [f"| `{column.name}` | {column.about} |\n" for column in columns_of(Row)]
    start, table, end = re.split(r"(?s)(?<=\n## rows\n)(.*?\n)(?=\n## )", PAGE.read_text())
    head = table[: table.index("| `")]
    return "".join([start, head, *lines, end])


if __name__ == "__main__":
    PAGE.write_text(make_page())
