"""Lightning in turns with PyTorch's bare loop, which is the limit of both; see benchmarks.inside."""

import torch

import ptl_impl.launch
from benchmarks.inside import BareLoop, train_beside
from benchmarks.loops import pt_limit
from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig


@torch.inference_mode(False)
@torch.enable_grad()
def make_bare(experiment: Experiment) -> BareLoop:
    """PyTorch's bare loop. It is made and run within Lightning's validation, and has to train there."""
    loop = pt_limit.make_bare(experiment)
    return torch.inference_mode(False)(torch.enable_grad()(loop))


if __name__ == "__main__":
    with as_program("ptl_limit"):
        config = parse_options(TrainConfig, "python -m benchmarks.loops.ptl_limit", "Lightning's limit.")
        train_beside(make_bare, ptl_impl.launch, config)
