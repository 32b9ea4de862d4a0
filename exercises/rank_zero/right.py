"""Other right answers that the checks of rank_zero must let pass."""

from exercises.checking import Right

UNFINISHED = '        unfinished = path.with_suffix(".unfinished")\n        torch.save(weights, unfinished)\n'

RIGHT = [
    Right(
        "a file that is open already, on the disk before it is renamed",
        UNFINISHED,
        "        unfinished = str(path) + '.tmp'\n        with open(unfinished, 'wb') as file:\n"
        "            torch.save(weights, file)\n            file.flush()\n            os.fsync(file.fileno())\n",
    ),
    Right(
        "a temporary file with a name of its own",
        UNFINISHED,
        "        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:\n"
        "            torch.save(weights, file)\n        unfinished = file.name\n",
    ),
    Right(
        "pathlib's rename",
        "        torch.save(weights, unfinished)\n        os.replace(unfinished, path)\n",
        "        torch.save(weights, f=unfinished)\n        unfinished.rename(path)\n",
    ),
]
