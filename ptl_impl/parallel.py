"""How replicas work together in Lightning: what `--strategy` names."""

from lightning.pytorch import strategies

from common.spec.device_options import Strategy
from common.spec.options import TrainConfig

# Of several devices, what "auto" stands for first.
STRATEGIES: tuple[Strategy, ...] = ("ddp", "ddp_find_unused_parameters_true", "fsdp", "pipeline")


def make_strategy(config: TrainConfig) -> str | strategies.Strategy:
    """The Trainer's argument."""
    match config.strategy:
        case "single_device":
            return "auto"
        case "fsdp":
            # Instead of Lightning's "fsdp", torch's first one, which it refuses on the CPU: see ptl_impl/sharding.py.
            return strategies.ModelParallelStrategy(data_parallel_size=config.num_shards, tensor_parallel_size=1)
        case "pipeline":
            # Lightning has none of its own: of this strategy only the processes are used.
            return strategies.ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=config.devices)
    return config.strategy
