"""Mistakes that the checks of ddp must reject."""

from exercises.checking import Wrong

MEAN = (
    "    if dist.is_initialized():\n        dist.all_reduce(totals)\n    loss_sum, count = totals.tolist()\n"
    "    return loss_sum / count\n"
)

WRONG = [
    Wrong("per-replica instead of global batch", "batch_size // world_size", "batch_size", "global_batch"),
    Wrong(
        "no sampler: everybody trains on everything",
        "    return DataLoader(data, batch_size // world_size, sampler=sampler)\n",
        "    return DataLoader(data, batch_size // world_size, shuffle=True)\n",
        "global_batch",
    ),
    Wrong(
        "shuffling only where there are several",
        "    sampler = DistributedSampler(data, world_size, rank, shuffle=True, seed=SEED)\n",
        "    sampler = DistributedSampler(data, world_size, rank, shuffle=world_size > 1, seed=SEED)\n",
        "orders_alone",
    ),
    Wrong(
        "a sampler only where there are several, and no shuffling else",
        "sampler=sampler)\n",
        "sampler=sampler if world_size > 1 else None)\n",
        "orders_alone",
    ),
    Wrong("no set_epoch", "    loader.sampler.set_epoch(epoch)\n", "", "orders"),
    Wrong("two orders in turns", "sampler.set_epoch(epoch)", "sampler.set_epoch(epoch % 2)", "orders"),
    Wrong(
        "no wrapping: nobody averages",
        "    return DistributedDataParallel(model) if",
        "    return model if",
        "same_training",
    ),
    Wrong(
        "keeping to DataParallel",
        "return DistributedDataParallel(model)",
        "return nn.DataParallel(model)",
        "same_training",
    ),
    Wrong("rank 0's loss for everybody's", "        dist.all_reduce(totals)\n", "        pass\n", "whole_loss"),
    Wrong(
        "adding the processes' means up",
        MEAN,
        "    mean = totals[0] / totals[1]\n    if dist.is_initialized():\n        dist.all_reduce(mean)\n"
        "    return mean.item()\n",
        "whole_loss",
    ),
    Wrong(
        "averaging averages",
        MEAN,
        "    mean = totals[0] / totals[1]\n    if dist.is_initialized():\n        dist.all_reduce(mean)\n"
        "        mean /= dist.get_world_size()\n    return mean.item()\n",
        "whole_loss",
    ),
    Wrong(
        "leaving the last batch out",
        "batch_size // world_size, sampler=sampler)",
        "batch_size // world_size, sampler=sampler, drop_last=True)",
        "global_batch",
    ),
    Wrong("leaving the odd example out", "seed=SEED)", "seed=SEED, drop_last=True)", "global_batch"),
    Wrong(
        "the rank for the GPU: there are not so many", 'os.environ.get("LOCAL_RANK"', 'os.environ.get("RANK"', "own_gpu"
    ),
    Wrong(
        "the first GPU for all",
        '        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))\n'
        "        torch.cuda.set_device(device)\n",
        '        device = torch.device("cuda")\n',
        "own_gpu",
    ),
    Wrong(
        "the processors' messages for GPUs",
        '"nccl" if device.type == "cuda" else "gloo"',
        '"gloo"',
        "own_gpu",
    ),
    Wrong(
        "a group of one",
        '        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")\n',
        '        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)\n',
        "joins",
    ),
    Wrong(
        "a group even for one",
        "    if world_size > 1:\n        dist.init",
        "    if True:\n        dist.init",
        "joins_alone",
    ),
]
