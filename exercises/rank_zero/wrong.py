"""Mistakes that the checks of rank_zero must reject."""

from exercises.checking import Wrong

DOWNLOAD = "    if rank == 0:\n        download(path)\n    dist.barrier()\n"
SAVE = "        torch.save(weights, unfinished)\n        os.replace(unfinished, path)\n    dist.barrier()\n"

LOCAL_RANK = 'int(os.environ["LOCAL_RANK"])'

WRONG = [
    Wrong("downloading once on each node", DOWNLOAD, DOWNLOAD.replace("rank ==", f"{LOCAL_RANK} =="), "one_download"),
    Wrong(
        "printing once on each node",
        "    if rank == 0:\n        print",
        f"    if {LOCAL_RANK} == 0:\n        print",
        "one_message",
    ),
    Wrong(
        "saving once on each node",
        "    if rank == 0:\n        unfinished",
        f"    if {LOCAL_RANK} == 0:\n        unfinished",
        "one_save",
    ),
    Wrong(
        "taking a file that is there for a complete one",
        DOWNLOAD,
        DOWNLOAD.replace("rank == 0:", "rank == 0 and not path.exists():"),
        "complete_download",
    ),
    Wrong(
        "the barrier before the rename",
        SAVE,
        "        torch.save(weights, unfinished)\n    dist.barrier()\n"
        "    if rank == 0:\n        os.replace(unfinished, path)\n",
        "complete_save",
    ),
    Wrong(
        "saving only where nothing is saved yet",
        "    if rank == 0:\n        unfinished",
        "    if rank == 0 and not path.exists():\n        unfinished",
        "replaced",
    ),
    Wrong("downloading in every process", DOWNLOAD, "    download(path)\n    dist.barrier()\n", "one_download"),
    Wrong("nobody waits for the data", DOWNLOAD, "    if rank == 0:\n        download(path)\n", "complete_download"),
    Wrong(
        "the barrier before the download",
        DOWNLOAD,
        "    dist.barrier()\n    if rank == 0:\n        download(path)\n",
        "complete_download",
    ),
    Wrong(
        "a barrier for rank 0 alone",
        DOWNLOAD,
        "    if rank == 0:\n        download(path)\n        dist.barrier()\n",
        "one_download",
    ),
    Wrong(
        "printing in every process",
        "        print(message, flush=True)\n",
        "        pass\n    print(message)\n",
        "one_message",
    ),
    Wrong(
        "saving from every rank",
        "    if rank == 0:\n        unfinished",
        "    if True:\n        unfinished",
        "one_save",
    ),
    Wrong(
        "sleeping instead of waiting",
        DOWNLOAD,
        "    if rank == 0:\n        download(path)\n    else:\n        time.sleep(2)\n",
        "complete_download",
    ),
    Wrong("nobody waits for the file", SAVE, SAVE.replace("    dist.barrier()\n", ""), "complete_save"),
    Wrong(
        "writing under the file's own name",
        SAVE,
        "        torch.save(weights, path)\n    dist.barrier()\n",
        "never_half",
    ),
    Wrong(
        "copying over the last file",
        "        os.replace(unfinished, path)\n",
        "        import shutil\n\n        shutil.copyfile(unfinished, path)\n",
        "replaced",
    ),
    Wrong(
        "removing the last file first",
        "        os.replace(unfinished, path)\n",
        "        path.unlink(missing_ok=True)\n        os.replace(unfinished, path)\n",
        "replaced",
    ),
    Wrong(
        "an unfinished file on another disk",
        'unfinished = path.with_suffix(".unfinished")',
        'unfinished = Path(tempfile.mkdtemp(), "unfinished")',
        "replaced",
    ),
]
