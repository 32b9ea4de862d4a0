"""Starts a program on the nodes of a Ray cluster: options like torchrun's, Ray Train's trainer, addresses, errors.

    python -m launch.ray_train --nnodes 2 --nproc-per-node 2 --max-restarts 3 -m pt_impl --resume auto ...

Each worker of Ray Train runs the program in a separate process, in the current folder. The worker's trainer sets
environment variables for it: TorchTrainer sets the address where PyTorch's processes meet, and TensorflowTrainer sets
TF_CONFIG. All nodes need the current folder, the Python environment and the run folder at the same paths, for example
on a shared disk.
"""

import argparse
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

INSTALL = "pip install -r requirements-ray.txt -c constraints.txt"
PROGRAM = "python -m launch.ray_train"
ANSWER_SECONDS = 5
# Ray gives up waiting for free CPUs after 60 s, prints a stack trace, and starts to wait again.
WAIT_SECONDS = 30 * 24 * 3600
USER_ERROR = 2  # exit status after a mistake of the user: another attempt would fail in the same way


def main(words: list[str]) -> NoReturn:
    options = parse(words)
    try:
        sys.exit(train(options))
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def train(options: argparse.Namespace) -> int:
    """Runs the command on all nodes; returns its exit status."""
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(WAIT_SECONDS))
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    except ImportError as error:
        raise SystemExit(f"{PROGRAM}: error: {error.name} is not installed: {INSTALL}") from None
    address = options.address or os.environ.get("RAY_ADDRESS")
    check_address(address)
    try:
        ray.init(address=options.address)
    except ConnectionError:
        raise SystemExit(f"{PROGRAM}: error: --address {address}: no Ray cluster answers there") from None
    resources = {"CPU": options.num_cpus, "GPU": options.num_gpus}
    check_nodes(options, [node["Resources"] for node in ray.nodes() if node["Alive"]])
    trainer = trainer_class(options.command)(
        run_worker,
        train_loop_config={
            "command": options.command,
            "folder": str(Path.cwd()),
            "workers_per_node": options.nproc_per_node,
        },
        scaling_config=ScalingConfig(
            num_workers=options.nnodes * options.nproc_per_node,
            use_gpu=options.num_gpus > 0,
            resources_per_worker={name: number for name, number in resources.items() if number},
            placement_strategy=placement_strategy(options.nnodes, options.nproc_per_node),
        ),
        run_config=RunConfig(
            storage_path=options.storage_path and str(options.storage_path.absolute()),
            failure_config=FailureConfig(max_failures=options.max_restarts),
        ),
    )
    try:
        return int(in_thread(trainer.fit).return_value)
    except TrainingFailedError as error:
        raise SystemExit(f"{PROGRAM}: error: {reason(error)}; --max-restarts {options.max_restarts}") from None


def in_thread(function: Callable[[], Any]) -> Any:
    """Calls `function` in a thread, so that Ctrl-C ends this program, and with it its workers.

    In the main thread Ray would handle Ctrl-C itself: it asks the job to stop, which does not answer while it waits for
    CPUs.
    """
    outcome: Future[Any] = Future()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return outcome.result()


def check_nodes(options: argparse.Namespace, nodes: list[dict[str, float]]) -> None:
    """Ends this program if the cluster can never do what it is asked for; Ray itself would wait for ever.

    Args:
      nodes: the resources of each node, by name.
    """
    if options.nnodes > len(nodes):
        several = "s" * (len(nodes) > 1)
        raise SystemExit(f"{PROGRAM}: error: --nnodes {options.nnodes}: the cluster has {len(nodes)} node{several}")
    processes = options.nproc_per_node
    for option, kind, number in (("--num-cpus", "CPU", options.num_cpus), ("--num-gpus", "GPU", options.num_gpus)):
        enough = sum(node.get(kind, 0.0) >= number * processes for node in nodes)
        if enough < options.nnodes:
            raise SystemExit(
                f"{PROGRAM}: error: {option} {number}: with --nproc-per-node {processes} a node needs"
                f" {number * processes} {kind}s; {enough} of the cluster's {len(nodes)} nodes have them"
            )


def check_address(address: str | None) -> None:
    """Ends this program if no server answers at HOST:PORT; Ray itself would try for half a minute."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():  # no address, or one of Ray's own words: auto, local, ray://...
        return
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        why = error.strerror or error
        raise SystemExit(f"{PROGRAM}: error: --address {address}: no Ray cluster answers there ({why})") from None


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Starts a program on the nodes of a Ray cluster.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--nnodes", type=positive, default=1, metavar="N", help="how many nodes; 1 by default")
    add("--nproc-per-node", type=positive, default=1, metavar="N", help="processes on each of them; 1 by default")
    add("--max-restarts", type=int, default=0, metavar="N", help="how often all start again when one has failed")
    add("--num-cpus", type=positive, default=1, metavar="N", help="CPUs that each process takes; 1 by default")
    add("--num-gpus", type=int, default=0, metavar="N", help="GPUs that each process takes; none by default")
    add("--address", metavar="HOST:PORT", help="of the cluster; by default RAY_ADDRESS, or the one of this machine")
    add("--storage-path", type=Path, metavar="DIR", help="for Ray's own files; all nodes see it; ~/ray_results")
    rest = argparse.REMAINDER
    add("-m", dest="module", nargs=rest, metavar="MODULE ...", help="pt_impl, ptl_impl or tf_impl, and its options")
    add("command", nargs=rest, metavar="COMMAND ...", help="instead of -m: a command, python -m pt_impl for example")
    options = parser.parse_args(words)
    if options.module:
        options.command = [sys.executable, "-m", *options.module]
    if not options.command:
        parser.error("-m MODULE: missing; which program?")
    if shutil.which(options.command[0]) is None:
        parser.error(f"{options.command[0]}: no such program; for a module: -m {options.command[0]}")
    return options


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text}: not a number from 1 on")
    return int(text)


def is_tensorflow(command: list[str]) -> bool:
    return "tf_impl" in command


def trainer_class(command: list[str]) -> Callable[..., Any]:
    if is_tensorflow(command):
        from ray.train.tensorflow import TensorflowTrainer

        return TensorflowTrainer
    from ray.train.torch import TorchConfig, TorchTrainer

    # gloo: the workers themselves compute nothing, and should use no GPU memory.
    return functools.partial(TorchTrainer, torch_config=TorchConfig(backend="gloo"))


def placement_strategy(num_nodes: int, workers_per_node: int) -> str:
    """Ray's name of the strategy. SPREAD does not guarantee the number of workers on a node: `run_worker` checks it."""
    if num_nodes == 1:
        return "STRICT_PACK"
    return "STRICT_SPREAD" if workers_per_node == 1 else "SPREAD"


def reason(error: Exception) -> str:
    """The reason of an error of Ray Train, without stack traces: that of the failed worker with the lowest rank."""
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    for rank, failure in sorted(failures.items()):
        lines = [line for line in str(failure).splitlines() if line.strip()]
        return f"worker {rank}: {lines[-1].strip() if lines else type(failure).__name__}"
    return str(error).splitlines()[-1]


def run_worker(worker: dict[str, Any]) -> int:
    """Runs the program in a worker of Ray Train.

    Args:
      told: the command, its folder, and how many workers each node should have.

    Returns:
      The program's exit status: 0, or USER_ERROR for a mistake that the user has to correct.

    Raises:
      RuntimeError: the node has another number of workers, or the program has failed in another way; Ray Train may
        restart all workers.
    """
    import ray.train

    context = ray.train.get_context()
    size, local_size = context.get_world_size(), context.get_local_world_size()
    if local_size != worker["workers_per_node"]:
        raise RuntimeError(f"Ray has put {local_size} processes on a node, not {worker['workers_per_node']}")
    environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    store = None
    if not is_tensorflow(worker["command"]):
        store, port = open_store(context.get_world_rank())
        # Ray Train has set the others: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR.
        environment |= {
            "MASTER_PORT": str(port),
            "GROUP_RANK": str(context.get_node_rank()),
            "GROUP_WORLD_SIZE": str(size // local_size),
            "TORCHELASTIC_RUN_ID": context.get_experiment_name(),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    # The program ends when this process ends, in whatever way: see common/platform/processes.py.
    status = subprocess.run(worker["command"], cwd=worker["folder"], env=environment).returncode
    del store
    if status not in (0, USER_ERROR):
        raise RuntimeError(f"exit status {status}" if status > 0 else f"ended by signal {-status}")
    return status


def open_store(rank: int) -> tuple[Any, int]:
    """The TCP store through which the program's processes find each other, and its port.

    Only the first worker has the store, and must keep it; the others get None. The workers' own store can't be used,
    because its content belongs to the workers' own process group.
    """
    import torch.distributed as dist

    store, port = None, [0]
    if rank == 0:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False)
        port = [store.port]
    dist.broadcast_object_list(port)
    return store, port[0]


if __name__ == "__main__":
    main(sys.argv[1:])
