"""Weights in Keras: see tf_impl/weights.py."""

from tf_impl.weights import get_weights as get_weights
from tf_impl.weights import load_weights as load_weights
