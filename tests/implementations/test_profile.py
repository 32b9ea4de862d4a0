"""`--profile N`: steps, operations and trace of each framework's own profiler; the training does not change."""

import gzip
import json

import pytest
from conftest import CPU, program_of, run, run_program

from common.platform.files import read_json_model
from common.record.profile import PROFILE_FILE, SHOWN_OPERATIONS, Profile, ProfiledOperation
from common.record.results import read_step_losses


def has_convolution(name):
    return "conv" in name.lower()


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "devices"), [("pt", 2), ("tf", 1)])
def test_each_framework_profiles_its_own_steps(implementation, devices, tmp_path):
    options = ("--epochs", 2, "--train-size", 1280, "--test-size", 50, "--precision", 64, "--devices", devices, *CPU)
    command = (*program_of(implementation), *options)
    shown = run(*command, "--run-dir", tmp_path / "r", "--profile", 6).stdout
    profile = read_json_model(Profile, tmp_path / "r" / PROFILE_FILE)
    assert (profile.implementation, profile.first_step, profile.num_steps) == (implementation, 11, 6)
    assert (
        0 < len(profile.operations) <= SHOWN_OPERATIONS and profile.wall_seconds > 0 and profile.computation_seconds > 0
    )
    seconds = [operation.seconds for operation in profile.operations]
    assert seconds == sorted(seconds, reverse=True)
    convolutions = [operation for operation in profile.operations if has_convolution(operation.name)]
    assert convolutions and all(convolution.calls % 6 == 0 for convolution in convolutions), profile.operations
    assert (profile.communication_seconds > 0) == (devices > 1)
    trace = json.loads(gzip.decompress((tmp_path / "r" / "profile" / "trace.json.gz").read_bytes()))["traceEvents"]
    traced = sum(one["ph"] == "X" and one["dur"] >= 0 and has_convolution(one["name"]) for one in trace)
    assert traced >= sum(convolution.calls for convolution in convolutions)
    assert f"profile: {profile.title}" in shown and convolutions[0].name[:45] in shown
    run(*command, "--run-dir", tmp_path / "without")  # the training is the same
    losses, without = (read_step_losses(tmp_path / name) for name in ("r", "without"))
    assert losses == pytest.approx(without, rel=1e-12) and len(losses) == 40


def test_more_steps_than_there_are_end_in_a_line(tmp_path):
    options = ("--epochs", 2, "--train-size", 640, "--profile", 500, "--run-dir", tmp_path / "r")
    (line,) = run_program("pt", *CPU, *options, expect=2).stderr.splitlines()
    assert line.endswith("--profile 500: an epoch has 10 steps after warm-up; profile as many at most")


def test_communication_is_distinguished_from_computation():
    communication = ("gloo:all_reduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "CollectiveReduceV2")
    computation = ("aten::convolution_backward", "BroadcastTo", "aten::reduce_mean")
    kinds = {name: ProfiledOperation(name=name, calls=1, seconds=1.0).kind for name in (*communication, *computation)}
    assert kinds == dict.fromkeys(communication, "communication") | dict.fromkeys(computation, "computation")
