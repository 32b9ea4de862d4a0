"""The training in PyTorch: nn.Module, a written-out loop, DistributedDataParallel and other strategies."""
