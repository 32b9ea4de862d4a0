"""Other right answers that the checks of one_device must let pass."""

from exercises.checking import Right

WAIT = '    if device.type == "cuda":\n        torch.cuda.synchronize(device)\n'

RIGHT = [
    Right("wherever there is a GPU", WAIT, "    if torch.cuda.is_available():\n        torch.cuda.synchronize()\n"),
    Right(
        "the stream's synchronize",
        WAIT,
        '    if device.type == "cuda":\n        torch.cuda.current_stream(device).synchronize()\n',
    ),
    Right(
        "the device as a context",
        WAIT,
        '    if device.type == "cuda":\n        with torch.cuda.device(device):\n'
        "            torch.cuda.synchronize()\n",
    ),
]
