"""pt_impl in tuned mode without one of its measures; see benchmarks.measures. Several devices need torchrun."""

import pt_impl.launch
from benchmarks.loops.pt_limit import make_bare
from benchmarks.without import replace, run_without
from common.platform.program import as_program
from pt_impl import tuning


def channels_first() -> None:
    """Gives network and images PyTorch's default memory layout."""
    as_stored = tuning.NormaliseOnDevice.__call__
    replace(tuning, tune_network=lambda network, config: network)
    replace(tuning.NormaliseOnDevice, __call__=lambda self, images: as_stored(self, images).contiguous())


WITHOUT = {"channels-last": channels_first}

if __name__ == "__main__":
    with as_program("pt_without"):
        run_without("pt", WITHOUT, make_bare, pt_impl.launch)
