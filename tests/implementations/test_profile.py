"""`--profile N`: steps, operations and trace of each framework's own profiler; the training does not change."""

import gzip
import json
import re
import subprocess

import pytest
from conftest import REPOSITORY, program_of

from common.platform.errors import UserError
from common.platform.files import read_json_model
from common.record.profile import COSTLIEST, PROFILE_FILE, Profile, ProfiledOperation, profiled_steps
from common.record.results import read_result, read_step_losses
from common.spec.batches import Plan

CONVOLUTION = re.compile("conv", re.IGNORECASE)
LONG = pytest.mark.slow


def train(implementation, run_dir, *options):
    command = [*program_of(implementation), "--run-dir", str(run_dir), "--epochs", "2"]
    command += ["--threads-per-device", "1", "--precision", "64", "--test-size", "50", *options]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "devices"),
    [("pt", 2), ("tf", 1), *(pytest.param(*case, marks=LONG) for case in (("keras", 1), ("ptl", 2), ("tf", 2)))],
)
def test_each_framework_profiles_its_own_steps(implementation, devices, tmp_path):
    options = ("--train-size", "1280", "--devices", str(devices))
    done = train(implementation, tmp_path / "r", *options, "--profile", "6")
    assert done.returncode == 0, done.stderr
    profile = read_json_model(Profile, tmp_path / "r" / PROFILE_FILE)
    assert (profile.implementation, profile.first_step, profile.num_steps) == (implementation, 11, 6)
    assert 0 < len(profile.operations) <= COSTLIEST and profile.wall_seconds > 0 and profile.computation_seconds > 0
    seconds = [operation.seconds for operation in profile.operations]
    assert seconds == sorted(seconds, reverse=True)
    names = [operation.name for operation in profile.operations]
    convolutions = [operation for operation in profile.operations if CONVOLUTION.search(operation.name)]
    assert convolutions and all(convolution.calls % 6 == 0 for convolution in convolutions), names
    if implementation in ("pt", "ptl"):  # TensorFlow adds the gradients of replicas in one process with AddN
        assert (profile.communication_seconds > 0) == (devices > 1)
    trace = json.loads(gzip.decompress((tmp_path / "r" / "profile" / "trace.json.gz").read_bytes()))["traceEvents"]
    traced = [one["name"] for one in trace if one["ph"] == "X" and one["dur"] >= 0]
    assert sum(bool(CONVOLUTION.search(name)) for name in traced) >= sum(
        convolution.calls for convolution in convolutions
    )
    assert f"profile: {profile.title}" in done.stdout and all(name[:45] in done.stdout for name in names)
    # The training is the same as without the profiler.
    assert train(implementation, tmp_path / "without", *options).returncode == 0
    losses, without = (read_step_losses(tmp_path / name) for name in ("r", "without"))
    assert losses == pytest.approx(without, rel=1e-12) and len(losses) == 40
    assert read_result(tmp_path / "without").config.profile is None


def plan(train_size, batch_size, epochs, max_steps=-1):
    return Plan.make(train_size, batch_size, epochs, max_steps, None, 1)


def test_the_steps_are_the_first_ones_after_warm_up_in_one_epoch():
    assert profiled_steps(plan(100, 5, 3), 10, 10) == range(11, 21)
    assert profiled_steps(plan(100, 5, 3), 10, 11) == range(21, 32)  # not across the evaluation after step 20
    assert profiled_steps(plan(100, 5, 3), 10, 20) == range(21, 41)
    assert profiled_steps(plan(100, 5, 1), 10, 5) == range(11, 16)


@pytest.mark.parametrize(("epochs", "number", "most"), [(3, 21, 20), (1, 11, 10)])
def test_more_steps_than_there_are_end_in_a_line(epochs, number, most):
    with pytest.raises(UserError, match=f"--profile {number}: an epoch has {most} steps after warm-up; profile"):
        profiled_steps(plan(100, 5, epochs), 10, number)


def test_that_line_is_what_the_program_says(tmp_path):
    done = train("pt", tmp_path / "r", "--train-size", "640", "--profile", "500")
    assert done.returncode == 2
    told = "python -m pt_impl: error: --profile 500: an epoch has 10 steps after warm-up; profile as many at most"
    assert done.stderr.splitlines() == [told]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("c10d::allreduce_", "communication"),
        ("gloo:all_reduce", "communication"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
        ("CollectiveReduceV2", "communication"),
        ("NcclAllReduce", "communication"),
        ("c10d::_allgather_base_", "communication"),
        ("aten::convolution_backward", "computation"),
        ("BroadcastTo", "computation"),
        ("aten::reduce_mean", "computation"),
    ],
)
def test_communication_is_distinguished_from_computation(name, kind):
    assert ProfiledOperation(name=name, calls=1, seconds=1.0).kind == kind
