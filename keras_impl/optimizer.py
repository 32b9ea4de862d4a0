"""The optimizer in Keras: tf_impl's, which is a Keras optimizer."""

from tf_impl.optimizer import make_optimizer as make_optimizer
