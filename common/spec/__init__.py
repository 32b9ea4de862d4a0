"""Specification of a training: options, networks, update rule, and the examples in each batch."""
