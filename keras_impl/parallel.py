"""How replicas work together in Keras: fit trains in the scope of TensorFlow's strategy."""

from common.spec.options import Strategy
from tf_impl.parallel import make_strategy as make_strategy

# TensorFlow's pipeline is missing here: its steps are written out.
STRATEGIES: tuple[Strategy, ...] = ("mirrored",)
