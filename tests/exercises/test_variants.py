"""Works that students hand in: the checks reject the wrong ones, each by its test, and pass the right ones."""

import sys

import pytest
import yaml
from conftest import REPOSITORY, run

from exercises.course import ACTIVITIES, FOLDER


def variants():
    for name in ACTIVITIES:
        marks = () if name == "scaling" else pytest.mark.slow
        for kind, entries in yaml.safe_load((FOLDER / name / "variants.yaml").read_text()).items():
            for entry in entries:
                yield pytest.param(name, kind, entry, id=f"{name}-{entry['name']}", marks=marks)


@pytest.mark.parametrize(("name", "kind", "entry"), list(variants()))
def test_a_variant_is_judged_rightly(name, kind, entry, tmp_path):
    work, text = tmp_path / f"{name}.py", (FOLDER / name / "work.py").read_text()
    assert text.count(entry["old"]) == 1, f"{entry['old']!r} does not stand in {name}/work.py once"
    work.write_text(text.replace(entry["old"], entry["new"]))
    checks = f"exercises/{name}/test_work.py" + (f"::{entry['fails']}" if kind == "wrong" else "")
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", checks, "--work", work]
    done = run(*command, cwd=REPOSITORY, expect=int(kind == "wrong"))
    assert kind == "right" or "error" not in done.stdout.splitlines()[-1], done.stdout
