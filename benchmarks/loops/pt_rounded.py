"""pt_impl in 64 bits; only layers' outputs and their gradients are rounded to 32 bits; see benchmarks.rounding."""

from typing import Any

import torch
from torch import nn

import pt_impl.launch
import pt_impl.train
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig

make_network = pt_impl.train.make_network


def rounded(values: torch.Tensor) -> torch.Tensor:
    return values.float().double()


def rounding_network(*arguments: Any) -> nn.Module:
    """The network, with its layers' outputs and their gradients rounded to 32 bits."""
    network = make_network(*arguments)

    def round_output(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        kept = output + (rounded(output) - output).detach()
        if kept.requires_grad:
            kept.register_hook(rounded)
        return kept

    for module in network.modules():
        if not list(module.children()):
            module.register_forward_hook(round_output)
    return network


if __name__ == "__main__":
    with as_program("pt_rounded"):
        pt_impl.train.make_network = rounding_network
        pt_impl.launch.main(
            parse_options(TrainConfig, "python -m benchmarks.loops.pt_rounded", "Rounds between layers.")
        )
