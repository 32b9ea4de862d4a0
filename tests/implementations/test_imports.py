"""A run imports only what it uses: its own framework, and nothing that only other frameworks need."""

import pytest
from conftest import CPU, run

from common.implementations import environment_of, folder_of, interpreter_of

# Keras imports matplotlib, pandas and sklearn if they are installed. Lightning's torchmetrics imports matplotlib, scipy
# and torchvision.
UNUSED = {
    "tf": {"jax", "torch", "torchvision", "lightning"},
    "pt": {"jax", "tensorflow", "keras", "torchvision", "lightning", "scipy", "matplotlib", "pandas", "sklearn"},
    "ptl": {"jax", "tensorflow", "keras", "pandas", "sklearn"},
    "jax": {"tensorflow", "keras", "torch", "torchvision", "lightning", "matplotlib", "pandas", "sklearn"},
    "keras_torch": {"tensorflow", "jax", "lightning"},
}
PACKAGES = {"tf": "tensorflow", "pt": "torch", "ptl": "lightning", "jax": "jax", "keras_torch": "keras"}
# Runs a module as `python -m` does, and prints the loaded modules at the end.
PROGRAM = """
import os, runpy, sys
end = os._exit
def say(status):
    print("loaded:", *(name for name, module in sys.modules.items() if module), flush=True)
    end(status)
os._exit = say
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", UNUSED)
def test_a_run_imports_its_own_framework_and_nothing_for_others(tmp_path, implementation):
    options = ("--max-steps", 1, "--devices", 1, *CPU, "--run-dir", tmp_path)
    options = (*options, "--mode", "tutorial" if implementation == "keras_torch" else "plain")
    words = ("-c", PROGRAM, folder_of(implementation), *options)
    output = run(interpreter_of(implementation), *words, **environment_of(implementation)).stdout
    packages = {name.split(".")[0] for name in output.partition("loaded: ")[2].split()}
    assert PACKAGES[implementation] in packages and not packages & UNUSED[implementation]
