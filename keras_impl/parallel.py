"""How replicas work together in Keras: TensorFlow's strategy, in whose scope fit trains."""

from common.spec.device_options import Strategy
from tf_impl.parallel import make_strategy as make_strategy

# Not TensorFlow's pipeline, whose steps are written out.
STRATEGIES: tuple[Strategy, ...] = ("mirrored",)
