"""Precision in Keras: see tf_impl/precision.py."""

from tf_impl.precision import DTYPES as DTYPES
