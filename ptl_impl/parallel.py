"""How replicas work together in Lightning: what `--strategy` names."""

from lightning.pytorch.strategies import ModelParallelStrategy, Strategy

from common.spec.options import TrainConfig


def make_strategy(config: TrainConfig) -> str | Strategy:
    """The Trainer's argument."""
    match config.strategy:
        case "single_device":
            return "auto"
        case "fsdp":
            # Instead of Lightning's "fsdp", torch's first one, which it refuses on the CPU: see ptl_impl/sharding.py.
            return ModelParallelStrategy(data_parallel_size=config.devices, tensor_parallel_size=1)
        case "pipeline":
            # Lightning has none of its own: of this strategy only the processes are used.
            return ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=config.devices)
    return config.strategy
