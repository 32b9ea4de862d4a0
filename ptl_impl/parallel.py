"""How replicas work together in Lightning: the strategies that `--strategy` names."""

from lightning.pytorch import strategies

from common.spec.options import Strategy, TrainConfig

# For several devices, "auto" means the first of these.
STRATEGIES: tuple[Strategy, ...] = ("ddp", "ddp_find_unused_parameters_true", "fsdp", "pipeline")


def make_strategy(config: TrainConfig) -> str | strategies.Strategy:
    """The Trainer's argument `strategy`."""
    match config.strategy:
        case "single_device":
            return "auto"
        case "fsdp":
            # Instead of Lightning's "fsdp": that is PyTorch's first version, which Lightning refuses on the CPU. See
            # ptl_impl/sharding.py.
            return strategies.ModelParallelStrategy(data_parallel_size=config.num_shards, tensor_parallel_size=1)
        case "pipeline":
            # Lightning has no pipeline of its own. Only the processes of this strategy are used.
            return strategies.ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=config.devices)
    return config.strategy
