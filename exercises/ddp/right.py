"""Other right answers that the checks of ddp must let pass."""

from exercises.checking import Right

GPU = (
    '        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))\n'
    "        torch.cuda.set_device(device)\n"
)

RIGHT = [
    Right(
        "the current GPU, set once",
        GPU,
        '        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))\n'
        '        device = torch.device("cuda")\n',
    ),
    Right(
        "whatever accelerator there is, as torch's documentation counts it",
        GPU,
        "        torch.accelerator.set_device_index(rank % torch.accelerator.device_count())\n"
        "        device = torch.accelerator.current_accelerator()\n",
    ),
    Right(
        "torch chooses who carries the messages",
        'dist.init_process_group("nccl" if device.type == "cuda" else "gloo")',
        "dist.init_process_group()",
    ),
]
