"""The state of a training in Keras: tf_impl's, whose network and optimizer are Keras's."""

from tf_impl.state import get_state as get_state
from tf_impl.state import set_state as set_state
