"""Runs compare.py here, and writes its table into docs/processors.md, below the name of this processor.

python docs/processors.py [OPTION of compare.py ...]
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from common.platform.processor import cpu_flags, cpuinfo

PAGE = REPOSITORY / "docs" / "processors.md"
EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # those that change what the frameworks' libraries run


def processor() -> str:
    """Its name, which may be that of several generations, and what tells them apart. Needs Linux."""
    extensions = ", ".join(name for name in EXTENSIONS if name in cpu_flags())
    return f"{cpuinfo('model name')}, family {cpuinfo('cpu family')}, model {cpuinfo('model')}: {extensions}"


def main() -> None:
    options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "compare.py", *options, "--output-dir", f"{place}/comparison"]
        subprocess.run(command, cwd=REPOSITORY, check=True)
        about, table, *_ = re.split(r"\n\n(?=\|)|(?<=\|)\n\n", Path(place, "comparison", "results.md").read_text())
    asked = f"    {' '.join(['python compare.py', *options])}\n\n"
    heading = f"## {processor()}\n"
    introduction, *sections = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)
    kept = [section for section in sections if not section.startswith(heading)]
    _, _, about = about.partition("\n\n")  # the command, of which --output-dir is nothing to repeat
    new = f"{heading}\n{asked}{about}\n\n{table.strip()}\n"
    PAGE.write_text("\n".join(part.strip() + "\n" for part in (introduction, *kept, new)))


if __name__ == "__main__":
    main()
