"""The networks in Lightning: PyTorch's."""

from pt_impl.networks import make_network as make_network
