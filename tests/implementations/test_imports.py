"""Nothing is imported that a run doesn't use: each framework in its own runs, tools of others in none."""

import sys

import pytest
from conftest import run

OTHERS = {
    "tf": {"torch", "torchvision", "lightning", "matplotlib", "pandas", "sklearn"},
    "pt": {"tensorflow", "keras", "torchvision", "lightning", "matplotlib", "pandas", "sklearn", "scipy"},
    # Lightning's torchmetrics imports matplotlib, scipy and torchvision itself, where they are installed.
    "ptl": {"tensorflow", "keras", "pandas", "sklearn"},
}
# Runs a module as `python -m` does, and says at the end what is loaded.
PROGRAM = """
import os, runpy, sys
end = os._exit
def say(status):
    print("loaded:", *(name for name, module in sys.modules.items() if module), flush=True)
    end(status)
os._exit = say
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("implementation", OTHERS)
def test_a_run_imports_its_own_framework_and_nothing_for_others(tmp_path, implementation):
    options = ("--max-steps", "1", "--devices", "1", "--accelerator", "cpu", "--threads-per-device", "1")
    output = run(sys.executable, "-c", PROGRAM, f"{implementation}_impl", *options, "--run-dir", str(tmp_path)).stdout
    packages = {name.split(".")[0] for name in output.partition("loaded: ")[2].split()}
    assert {"tf": "tensorflow", "pt": "torch", "ptl": "lightning"}[implementation] in packages
    assert not packages & OTHERS[implementation]
