"""A run imports only what it uses: its own framework, and nothing that only other frameworks need."""

import pytest
from conftest import CPU, run

from common.implementations import environment_of, folder_of, interpreter_of

# Keras imports these if they are installed. Lightning's torchmetrics imports matplotlib, scipy and torchvision.
UNUSED = {"matplotlib", "pandas", "sklearn"}
OTHERS = {
    ("tf", "plain"): {"jax", "torch", "torchvision", "lightning"},
    ("tf", "tuned"): {"jax", "torch", "torchvision", "lightning"},
    ("keras", "plain"): {"jax", "torch", "torchvision", "lightning"},
    ("keras", "tuned"): {"jax", "torch", "torchvision", "lightning"},
    ("pt", "plain"): {"jax", "tensorflow", "keras", "torchvision", "lightning", "scipy", *UNUSED},
    ("pt", "tuned"): {"jax", "tensorflow", "keras", "torchvision", "lightning", "scipy", *UNUSED},
    ("ptl", "plain"): {"jax", "tensorflow", "keras", "pandas", "sklearn"},
    ("ptl", "tuned"): {"jax", "tensorflow", "keras", "pandas", "sklearn"},
    ("jax", "plain"): {"tensorflow", "keras", "torch", "torchvision", "lightning", *UNUSED},
    ("keras_torch", "tutorial"): {"tensorflow", "jax", "lightning"},
    ("keras_jax", "tutorial"): {"tensorflow", "torch", "lightning"},
    ("jax", "tuned"): {"tensorflow", "keras", "torch", "torchvision", "lightning", *UNUSED},
}
PACKAGES = {"tf": "tensorflow", "keras": "keras", "pt": "torch", "ptl": "lightning", "jax": "jax"}
PACKAGES |= {"keras_torch": "torch", "keras_jax": "jax"}
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


@pytest.mark.quick("pt-plain")
@pytest.mark.parametrize(("implementation", "mode"), OTHERS)
def test_a_run_imports_its_own_framework_and_nothing_for_others(tmp_path, implementation, mode):
    options = ("--max-steps", 1, "--mode", mode, "--devices", 1, *CPU, "--run-dir", tmp_path)
    words = ("-c", PROGRAM, folder_of(implementation), *options)
    output = run(interpreter_of(implementation), *words, **environment_of(implementation)).stdout
    packages = {name.split(".")[0] for name in output.partition("loaded: ")[2].split()}
    assert PACKAGES[implementation] in packages
    assert not packages & OTHERS[implementation, mode]
