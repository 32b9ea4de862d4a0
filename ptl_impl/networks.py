"""The networks in Lightning: those of pt_impl."""

from pt_impl.networks import make_network as make_network
