"""Lightning in turns with PyTorch's bare loop, which is the limit of both; see benchmarks.within_a_run."""

import torch

from benchmarks.loops import pt_limit
from benchmarks.within_a_run import BareLoop, train_beside
from common.experiment import Experiment
from ptl_impl.backend import BACKEND


@torch.inference_mode(False)
@torch.enable_grad()
def make_bare(experiment: Experiment) -> BareLoop:
    """PyTorch's bare loop. It is made and run within Lightning's validation, and has to train there."""
    loop = pt_limit.make_bare(experiment)
    return torch.inference_mode(False)(torch.enable_grad()(loop))


if __name__ == "__main__":
    train_beside(make_bare, BACKEND, "benchmarks.loops.ptl_limit")
