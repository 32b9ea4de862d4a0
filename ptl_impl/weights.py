"""Weights in Lightning: see pt_impl/weights.py."""

from pt_impl.weights import get_weights as get_weights
from pt_impl.weights import load_weights as load_weights
