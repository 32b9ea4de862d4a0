"""The networks in Keras: those of tf_impl, which are Keras models."""

from tf_impl.networks import make_network as make_network
