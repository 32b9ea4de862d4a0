"""Inspection beside the training: as in TensorFlow, applied to the network inside the model."""

from tf_impl.inspection import predict as predict
from tf_impl.inspection import save_first_batch as save_first_batch
