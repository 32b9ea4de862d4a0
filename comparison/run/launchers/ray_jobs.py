"""`--launcher ray`: submits each group as a job to a Ray cluster, by Ray's Jobs API.

Ray starts the program of a job on one of its nodes, with the environment variables that Ray was started with there.
"""

import argparse
import json
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from common.platform.errors import UserError
from comparison.run.launchers import Group
from comparison.run.launchers.job_folder import OUTPUT_FILE
from comparison.run.program import Program
from comparison.run.runner import with_our_code

INSTALL = "pip install -r requirements-ray.txt -c constraints.txt"
# Errors of a request to a cluster: there is no cluster, it answers with an error, or the answer is not JSON.
TROUBLE = (ConnectionError, OSError, RuntimeError, ValueError)


@dataclass(frozen=True)
class RayJobs:
    """A `Queue` for Ray. `options`: of `ray job submit`; only those that `_parsed` knows."""

    options: str = ""
    name = "ray"
    title = "Ray"

    def check(self) -> None:
        """Raises UserError if Ray is not installed, no cluster answers, or the options are not valid."""
        self._whole_node()

    def submit(self, folder: Path, group: Group, timeout: float) -> str:
        options, cpus, gpus = self._parsed, 0.0, 0.0
        if group[0].config.nodes == 1:  # on several nodes, Ray Train's workers reserve the CPUs and GPUs
            cpus, gpus = self._whole_node()
        command = shlex.join([sys.executable, "-m", "comparison.run.launchers.on_node", str(folder)])
        output = shlex.quote(str(folder / OUTPUT_FILE))
        try:
            number: str = self._client.submit_job(
                entrypoint=f"cd {shlex.quote(str(Path.cwd()))} && exec {command} >> {output} 2>&1",
                submission_id=f"{'-'.join(group[0].run_dir.parts[-3:-1])}-{secrets.token_hex(4)}",
                runtime_env={"env_vars": with_our_code({})},
                entrypoint_num_cpus=cpus,
                entrypoint_num_gpus=gpus,
                entrypoint_resources=options.entrypoint_resources,
            )
        except TROUBLE as error:
            raise UserError(f"--launcher ray: it takes no job{_first_line(error)}") from None
        return number

    def starter(self, program: Program) -> tuple[str, ...]:
        nodes, processes = program.config.nodes, program.processes_per_node
        if nodes == 1:
            return ()  # the program starts its own processes
        cpus, gpus = self._whole_node()
        words = ["--nnodes", nodes, "--nproc-per-node", processes, "--num-cpus", max(1, int(cpus) // processes)]
        if program.config.accelerator == "gpu":
            words += ["--num-gpus", max(1, int(gpus) // processes)]
        return (program.interpreter, "-m", "launch.ray_train", *map(str, words))

    def states(self, numbers: Sequence[str]) -> dict[str, str] | None:
        try:
            jobs = self._client.list_jobs()
        except TROUBLE:
            return None
        states = {job.submission_id: str(job.status) for job in jobs if not job.status.is_terminal()}
        return {number: states[number] for number in numbers if number in states}

    def how_it_ended(self, number: str) -> str:
        try:
            job = self._client.get_job_info(number)
        except TROUBLE:
            return "has ended, and Ray no longer knows how"
        return f"has ended as {job.status}{_first_line(job.message)}"

    def cancel(self, numbers: Sequence[str]) -> None:
        for number in numbers:
            try:
                self._client.stop_job(number)
            except TROUBLE:
                continue  # the caller then checks whether the job still runs

    @cached_property
    def _client(self) -> Any:
        """The client of Ray's Jobs API. Raises UserError if Ray is not installed, or no cluster answers."""
        options = self._parsed
        try:
            from ray.job_submission import JobSubmissionClient

            return JobSubmissionClient(options.address)
        except ImportError as error:
            raise UserError(f"--launcher ray: {error.name} is not installed: {INSTALL}") from None
        except RuntimeError as error:
            if "pip install" in str(error):  # Ray is installed without the packages that its Jobs API needs
                raise UserError(f"--launcher ray: not all of it is installed: {INSTALL}") from None
            raise _no_answer(error) from None
        except TROUBLE as error:
            raise _no_answer(error) from None

    @cached_property
    def _parsed(self) -> argparse.Namespace:
        """The parsed options. Raises UserError for an unknown option or a value that is not valid."""

        class Parser(argparse.ArgumentParser):
            def error(self, message: str) -> NoReturn:
                raise UserError(f"--launcher-options: --launcher ray: {message}")

        parser = Parser(add_help=False, allow_abbrev=False)
        parser.add_argument("--address")
        parser.add_argument("--entrypoint-num-cpus", type=float)
        parser.add_argument("--entrypoint-num-gpus", type=float)
        parser.add_argument("--entrypoint-resources", type=json.loads)
        return parser.parse_args(shlex.split(self.options))

    def _whole_node(self) -> tuple[float, float]:
        """CPUs and GPUs that a job reserves: as many as every node has, so that no other job runs on its node.

        `--entrypoint-num-cpus` and `--entrypoint-num-gpus` replace these numbers.

        Raises:
          UserError: see `check`.
        """
        options, client = self._parsed, self._client
        from ray.util.state import list_nodes
        from ray.util.state.exception import RayStateApiException

        try:
            nodes = list_nodes(client.get_address(), filters=[("state", "=", "ALIVE")])
        except (*TROUBLE, RayStateApiException) as error:
            raise _no_answer(error) from None
        resources = [node.resources_total for node in nodes if node.resources_total.get("CPU")]
        if not resources:
            raise UserError("--launcher ray: no node of the cluster has a CPU")
        cpus, gpus = (min(node.get(kind, 0.0) for node in resources) for kind in ("CPU", "GPU"))
        return (
            cpus if options.entrypoint_num_cpus is None else options.entrypoint_num_cpus,
            gpus if options.entrypoint_num_gpus is None else options.entrypoint_num_gpus,
        )


def _no_answer(error: Exception) -> UserError:
    return UserError(f"--launcher ray: no cluster answers{_first_line(error)}")


def _first_line(output: object) -> str:
    """`: the first line`; empty if nothing was said."""
    lines = str(output or "").strip().splitlines()
    return f": {lines[0]}" if lines else ""
