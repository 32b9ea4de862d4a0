"""The networks in Keras: tf_impl's, which are Keras's."""

from tf_impl.networks import make_network as make_network
