"""Parallel strategies: training with sharded weights, or a network in two stages, is the same as on one device."""

import functools
import sys
from typing import get_args

import numpy as np
import pytest
from agreement import assert_the_same
from conftest import CPU, MODES, REPOSITORY, changed_code, each_mistake, run, run_program, train

from common.record.results import read_result, read_step_losses
from common.spec.options import ModelName
from comparison.lockstep import find_departure

DATA = ("--dataset", "synthetic", "--image-shape", 12, 9, 3, "--train-size", 331, "--test-size", 51, "--precision", 64)
# An epoch has 28 steps; the last step has 7 examples. Observed differences: 2e-15, and 5e-14 in the residual network.
SCENARIOS = {
    "accumulated": (
        *(*DATA, "--model", "mnist_dropout", "--batch-size", 4, "--accumulate-grad-batches", 3, "--epochs", 4),
        *("--gradient-clip-val", 0.7, "--momentum", 0.8, "--learning-rate", 0.02, "--label-smoothing", 0.1),
    ),
    "clipped": (
        *(*DATA, "--model", "cnn", "--batch-size", 12, "--epochs", 4, "--random-crop", 2),
        *("--optimizer", "adamw", "--weight-decay", 0.05, "--learning-rate", 0.003, "--gradient-clip-val", 0.7),
    ),
    "normalised": (
        *(*DATA, "--model", "resnet8", "--batch-size", 12, "--epochs", 4, "--learning-rate", 0.01),
        *("--sync-batchnorm", "true", "--momentum", 0.9),
    ),
}
TOLERANCES = {"accumulated": 1e-12, "clipped": 1e-12, "normalised": 1e-10}
WAYS = {
    "tf": [("mirrored", 1), ("pipeline", 2)],
    "keras": [("mirrored", 1)],
    "pt": [("ddp", 1), ("ddp_find_unused_parameters_true", 2), ("fsdp", 1), ("fsdp", 2), ("fsdp", 3), ("pipeline", 2)],
    "ptl": [("ddp", 1), ("ddp_find_unused_parameters_true", 2), ("fsdp", 1), ("fsdp", 2), ("fsdp", 3), ("pipeline", 2)],
    "jax": [("ddp", 1), ("fsdp", 1), ("fsdp", 2), ("fsdp", 3)],
}
RUNS = [
    (scenario, implementation, mode, *way)
    for scenario in SCENARIOS
    for implementation, ways in WAYS.items()
    for mode in MODES
    for way in ways
    if (scenario, implementation) != ("accumulated", "keras")  # which Keras refuses
]


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """Options -> PyTorch's plain run on one device."""
    return functools.cache(lambda *options: train("pt", tmp_path_factory.mktemp("r"), *options, "--devices", 1))


@pytest.mark.quick("clipped-tf-tuned-pipeline-2", "accumulated-pt-plain-fsdp-2")
@pytest.mark.xdist_group("strategies")
@pytest.mark.parametrize(
    ("scenario", "implementation", "mode", "strategy", "devices"),
    RUNS,
)
def test_a_strategy_trains_as_one_device_does(references, tmp_path, scenario, implementation, mode, strategy, devices):
    options, more = SCENARIOS[scenario], ("--mode", mode, "--strategy", strategy, "--devices", devices)
    if strategy == "pipeline" and scenario != "normalised" and mode == "tuned":
        more = (*more, "--microbatches", 2)
    other = train(implementation, tmp_path, *options, *more)
    assert read_result(other).config.strategy == strategy
    assert_the_same(references(*options), other, TOLERANCES[scenario], steps=112)


@pytest.mark.quick("lenet-pt", "resnet8-tf")  # whose layers have other names in Keras
@pytest.mark.xdist_group("strategies")
@pytest.mark.parametrize("implementation", ["tf", "pt"])
@pytest.mark.parametrize("model", get_args(ModelName))
def test_each_network_has_two_stages(tmp_path, implementation, model):
    size = 64 if model == "resnet50" else 17
    options = ("--dataset", "synthetic", "--image-shape", size, size + 1, 3, "--train-size", 8, "--test-size", 5)
    options = (*options, "--model", model, "--batch-size", 4, "--epochs", 1, "--precision", 64)
    reference = train(implementation, tmp_path / "one", *options)
    pipeline = train(implementation, tmp_path / "two", *options, "--strategy", "pipeline")
    assert_the_same(reference, pipeline, 1e-10, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "mode"),
    [("tf", "plain"), ("tf", "tuned"), ("pt", "tuned"), ("ptl", "plain"), ("ptl", "tuned")],
)
def test_microbatches_are_normalised_each_by_itself_alike_in_all(tmp_path, implementation, mode):
    """The losses differ from those of whole batches. A batch of 7 examples, which 3 does not divide, is not split."""
    options = (*SCENARIOS["normalised"], "--strategy", "pipeline", "--microbatches", 3, "--epochs", 1)
    reference = train("pt", tmp_path / "a", *options)
    other = train(implementation, tmp_path / "b", *options, "--mode", mode)
    assert_the_same(reference, other, 1e-10, steps=28)
    whole = train("pt", tmp_path / "c", *options, "--microbatches", 1)
    losses, others = (np.array(read_step_losses(folder)) for folder in (reference, whole))
    assert np.abs(losses - others)[0] > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["pt", "ptl"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "more",
    [("--precision", "16-mixed"), ("--precision", "bf16-mixed"), ("--compile", "true"), ("--save-first-batch", "true")],
)
def test_sharded_weights_with_other_settings(tmp_path, implementation, mode, more):
    options = (*DATA, "--model", "cnn", "--batch-size", 12, "--epochs", 4, "--optimizer", "adamw")
    options = (*options, "--train-size", 330, "--devices", 2, "--mode", mode, *more)
    ddp = train(implementation, tmp_path / "ddp", *options, timeout=900)
    fsdp = train(implementation, tmp_path / "fsdp", *options, "--strategy", "fsdp", timeout=900)
    if "--precision" in more:  # sums in another order differ in float32, and then also in half precision
        assert read_result(ddp).skipped_steps == read_result(fsdp).skipped_steps
        losses, others = (np.array(read_step_losses(folder))[:10] for folder in (ddp, fsdp))
        assert np.max(np.abs(losses - others)) < 1e-3
    else:
        message = find_departure(ddp, fsdp, 1e-12)
        assert message is None, message


@pytest.mark.parametrize(
    ("implementation", "mode"),
    [pytest.param(name, mode, marks=pytest.mark.slow) for name in ("pt", "ptl") for mode in MODES],
)
def test_replicas_that_normalise_their_own_shards_are_evaluated_alike(tmp_path, implementation, mode):
    options = (*SCENARIOS["normalised"], "--sync-batchnorm", "false", "--epochs", 2, "--devices", 2)
    reference = train("pt", tmp_path / "ddp", *options)
    assert_the_same(
        reference, train(implementation, tmp_path / "fsdp", *options, "--mode", mode, "--strategy", "fsdp"), 1e-10, 56
    )


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["pt", "ptl"])
@pytest.mark.parametrize("strategy", ["fsdp", "pipeline"])
def test_torchrun_starts_the_processes(references, tmp_path, implementation, strategy):
    options = SCENARIOS["accumulated"]
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    run(*launcher, "-m", f"{implementation}_impl", *CPU, *options, "--strategy", strategy, "--run-dir", tmp_path)
    assert_the_same(references(*options), tmp_path, 1e-12, 112)


SHARES = """
import torch, torch.distributed as dist
from torchvision.models import resnet18
from pt_impl.parallel import shard
dist.init_process_group("gloo")
network = resnet18()
whole = sum(one.numel() for one in network.parameters())
shard(network, torch.device("cpu"))
optimizer = torch.optim.Adam(network.parameters())
network(torch.zeros(2, 3, 32, 32)).sum().backward()
optimizer.step()
for kind in ("weights", "gradients", "mean", "square"):
    found = {
        "weights": lambda one: one, "gradients": lambda one: one.grad,
        "mean": lambda one: optimizer.state[one]["exp_avg"], "square": lambda one: optimizer.state[one]["exp_avg_sq"],
    }[kind]
    share = sum(found(one).to_local().numel() for one in network.parameters()) / whole
    assert 0.3 < share < 0.37, (kind, share)
"""


@pytest.mark.slow
def test_each_of_three_ranks_holds_a_third(tmp_path):
    (tmp_path / "shares.py").write_text(SHARES)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 3)
    run(*launcher, tmp_path / "shares.py", PYTHONPATH=str(REPOSITORY), OMP_NUM_THREADS="1")


PLACES = """
import tensorflow as tf
from common.experiment import Experiment
from common.spec.options import TrainConfig
from tf_impl import pipeline
from tf_impl.networks import make_network
from tf_impl.optimizer import make_optimizer
from tf_impl.parallel import make_strategy
from tf_impl.backend import BACKEND

config = TrainConfig(accelerator="cpu", strategy="pipeline", model="resnet8", optimizer="adam")
experiment = Experiment.make(BACKEND.resolve(config))
config = experiment.config
make_strategy(config)
with pipeline.placed(experiment.network, config):
    network = make_network(experiment.network, config)
    optimizer = make_optimizer(network, experiment.update_rule, config)
stages = pipeline.Stages(network, experiment.network, config)

def step(images, labels, count):
    loss, gradients, correct = stages.forward_backward(optimizer, images, labels, count)
    optimizer.apply_gradients(zip(gradients, network.trainable_variables))

shapes = tf.TensorSpec([None, 8, 8, 1]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)
operations = tf.function(step, input_signature=shapes).get_concrete_function().graph.get_operations()
for kind in ("Conv2D", "Conv2DBackpropFilter", "Sqrt"):
    devices = [one.device[-5:] for one in operations if one.type == kind]
    print(kind, devices.count("CPU:0"), devices.count("CPU:1"), len(devices))
for variables in (network.variables, [one for one in optimizer.variables if one.shape]):
    print(*sorted({(("1" if one.path.split("/")[-1].startswith(("layer2", "layer3", "fc")) or
                     one.path.startswith(("layer2", "layer3", "fc")) else "0"), one.value.device[-1])
                   for one in variables}))
"""


@pytest.mark.slow
def test_tensorflow_keeps_and_computes_each_stage_on_its_device():
    """Checks both passes, the variables and the optimizer's variables. The first stage has 3 of the 9 convolutions."""
    said = run(sys.executable, "-c", PLACES, OMP_NUM_THREADS="1").stdout.splitlines()
    assert said[:2] == ["Conv2D 3 6 9", "Conv2DBackpropFilter 3 6 9"]
    _, first, second, total = said[2].split()  # square roots in Adam's update rule
    assert int(first) and int(second) > int(first) and int(first) + int(second) == int(total)
    assert said[3:] == ["('0', '0') ('1', '1')"] * 2


@pytest.mark.slow
def test_what_a_strategy_has_not_got_is_reported(tmp_path):
    cases = {
        "tf": [
            (
                "fsdp",
                (),
                "--strategy fsdp: TensorFlow does not have it; use single_device, mirrored, multi",
            ),
        ],
        "keras": [("pipeline", (), "--strategy pipeline: Keras does not have it; use single_device, mirrored")],
        "jax": [("pipeline", (), "--strategy pipeline: JAX does not have it; use single_device, ddp, fsdp")],
        "pt": [
            ("pipeline", ("--precision", "16-mixed"), "--precision 16-mixed: not with --strategy pipeline"),
            ("pipeline", ("--save-first-batch", "true"), "--save-first-batch true: not with --strategy pipeline"),
        ],
        "ptl": [
            ("dp", (), "--strategy dp: Lightning does not have it; use single_device, ddp"),
        ],
    }
    for implementation, refused in cases.items():
        for strategy, more, said in refused:
            options = (*CPU, "--strategy", strategy, *more, "--run-dir", tmp_path / "r")
            process = run_program(implementation, *options, expect=2)
            assert said in process.stderr.splitlines()[-1], process.stderr
            assert not (tmp_path / "r").exists()


# name: (implementation, scenario, strategy, devices, file, code, mistake)
MUTATIONS = {
    "PyTorch's average of the shares": (
        *("pt", "clipped", "fsdp", 2, "pt_impl/train.py"),
        "scaler.scale(loss * config.num_shards)",
        "scaler.scale(loss)",
    ),
    "gradients that are never added up": (
        *("pt", "accumulated", "fsdp", 2, "pt_impl/parallel.py"),
        "model.set_requires_gradient_sync(True)",
        "pass",
    ),
    "a last batch that is not added up": (
        *("ptl", "accumulated", "fsdp", 2, "ptl_impl/sharding.py"),
        "last = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0 or self.trainer.is_last_batch",
        "last = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0",
    ),
    "the mean over the microbatches": (
        *("pt", "clipped", "pipeline", 2, "pt_impl/pipeline.py"),
        "scale_grads=False",
        "scale_grads=True",
    ),
    "each stage's gradients clipped by themselves": (
        *("ptl", "clipped", "pipeline", 2, "pt_impl/parallel.py"),
        "norm = sum_over_replicas(own.square()).sqrt()",
        "norm = own",
    ),
    "a first stage that learns from nothing": (
        *("tf", "clipped", "pipeline", 2, "tf_impl/pipeline.py"),
        "output_gradients=of_activations",
        "output_gradients=tf.ones_like(of_activations)",
    ),
    "the parts' gradients, but of the last one only": (
        *("tf", "clipped", "pipeline", 2, "tf_impl/pipeline.py"),
        "[total(parts) for parts in zip(*gradients, strict=True)]",
        "list(gradients[-1])",
    ),
}


@each_mistake(MUTATIONS, lambda name: "microbatches" in name)
def test_each_mistake_is_caught(tmp_path, mutation):
    implementation, scenario, strategy, devices, file, before, after = MUTATIONS[mutation]
    changed_code(tmp_path / "copy", file, before, after)
    # An epoch has 8 steps. Where 3 batches are accumulated, the last step has only 2.
    options = (*SCENARIOS[scenario], "--train-size", 91, "--epochs", 2, "--devices", devices)
    more = ("--strategy", strategy, *(("--microbatches", 2) if strategy == "pipeline" else ()))
    reference = train("tf" if implementation == "pt" else "pt", tmp_path / "reference", *options)
    mutant = train(implementation, tmp_path / "mutant", *options, *more, cwd=tmp_path / "copy")
    message = find_departure(reference, mutant, 1e-10)
    assert message is not None and message.startswith("step "), message


REPLICAS = {
    "pt": (
        "pt_impl/train.py",
        "    parts.scheduler.step()\n",
        "    parts.scheduler.step()\n"
        "    with torch.no_grad():\n"
        "        parts.network.conv1.bias += 1e-7 * torch.distributed.get_rank()\n",
    ),
    "tf": (
        "tf_impl/train.py",
        "            recorder.step(*shares)\n",
        "            recorder.step(*shares)\n"
        '            network.get_layer("conv1").bias.value.values[1].assign_add(tf.fill([32], 1e-4))\n',
    ),
}


@pytest.mark.parametrize("implementation", REPLICAS)
def test_replicas_with_different_weights_are_noticed(tmp_path, implementation):
    folder = changed_code(tmp_path / "copy", *REPLICAS[implementation])
    run_dir = train(implementation, tmp_path / "run", "--max-steps", 2, "--devices", 2, cwd=folder)
    assert read_result(run_dir).replicas_differ == "after step 1, replicas have different weights in conv1.bias"
    whole = train(implementation, tmp_path / "whole", "--max-steps", 2, "--devices", 2)
    assert read_result(whole).replicas_differ is None
