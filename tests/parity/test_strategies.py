"""Accumulated batches are one large batch. Sharded weights, or a network in two stages, train as one device does."""

import sys

import numpy as np
import pytest
from agreement import COLOURS, assert_arrays_agree, assert_the_same
from conftest import REPOSITORY, changed_code, run, train

from common.record.results import read_result, read_step_losses
from comparison.lockstep import find_departure

# An epoch has 28 steps; the last step has 7 examples. Observed differences: 2e-15, and 5e-14 in the residual network.
SCENARIOS = {
    "accumulated": (
        *(*COLOURS, "--model", "mnist_dropout", "--batch-size", 12, "--epochs", 2, "--learning-rate", 0.02),
        *("--gradient-clip-val", 0.7, "--momentum", 0.8, "--label-smoothing", 0.1),
    ),
    "clipped": (
        *(*COLOURS, "--model", "cnn", "--batch-size", 12, "--epochs", 2, "--random-crop", 2),
        *("--optimizer", "adamw", "--weight-decay", 0.05, "--learning-rate", 0.003, "--gradient-clip-val", 0.7),
    ),
    "normalised": (
        *(*COLOURS, "--model", "resnet8", "--batch-size", 12, "--epochs", 2, "--learning-rate", 0.01),
        *("--sync-batchnorm", "true", "--momentum", 0.9),
    ),
}
TOLERANCES = {"accumulated": 1e-12, "clipped": 1e-12, "normalised": 1e-10}
# Of three devices, the last one gets no examples of a batch of 4.
ACCUMULATED = ("--batch-size", 4, "--accumulate-grad-batches", 3)
# Each strategy of each implementation on some number of devices. Those that have code of their own for it (sharded
# weights, two stages) run in each scenario, the others in one.
OWN = {
    ("tf", "pipeline"): [("plain", 2), ("tuned", 2)],
    ("pt", "fsdp"): [("plain", 2), ("tuned", 1), ("tuned", 3)],
    ("pt", "pipeline"): [("tuned", 2), ("plain", 2)],
    ("ptl", "fsdp"): [("tuned", 2), ("plain", 1), ("plain", 3)],
    ("ptl", "pipeline"): [("plain", 2), ("tuned", 2)],
    ("jax", "fsdp"): [("plain", 3), ("tuned", 1), ("tuned", 2)],
}
RUNS = [
    *((scenario, *of, *ways[row % len(ways)]) for of, ways in OWN.items() for row, scenario in enumerate(SCENARIOS)),
    *(("accumulated", "tf", "mirrored", *way) for way in (("plain", 2), ("tuned", 3))),
    *(("accumulated", "ptl", "ddp", *way) for way in (("plain", 3), ("tuned", 2))),
    ("accumulated", "pt", "ddp", "plain", 2),
    ("accumulated", "jax", "ddp", "tuned", 3),
    ("clipped", "tf", "mirrored", "tuned", 1),
    ("normalised", "keras", "mirrored", "plain", 1),
    ("accumulated", "pt", "ddp_find_unused_parameters_true", "tuned", 2),
    ("normalised", "ptl", "ddp", "tuned", 1),
    ("clipped", "ptl", "ddp_find_unused_parameters_true", "plain", 2),
    ("clipped", "jax", "ddp", "tuned", 1),
]


@pytest.mark.quick("clipped-tf-pipeline", "accumulated-pt-fsdp", "accumulated-pt-ddp-plain")
@pytest.mark.xdist_group("strategies")
@pytest.mark.parametrize(("scenario", "implementation", "strategy", "mode", "devices"), RUNS)
def test_a_strategy_trains_as_one_device_does(trained, tmp_path, scenario, implementation, strategy, mode, devices):
    options, more = SCENARIOS[scenario], ("--mode", mode, "--strategy", strategy, "--devices", devices)
    if strategy == "pipeline" and scenario != "normalised" and mode == "tuned":
        more = (*more, "--microbatches", 2)
    if scenario == "accumulated":
        more = (*more, *ACCUMULATED)
    other = train(implementation, tmp_path, *options, *more)
    assert read_result(other).config.strategy == strategy
    assert_the_same(trained("pt", *options), other, TOLERANCES[scenario], steps=56)


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "mode"), [("tf", "plain"), ("ptl", "tuned")])
def test_accumulated_batches_are_normalised_one_at_a_time(tmp_path, implementation, mode):
    options = (*COLOURS, "--model", "resnet8", "--batch-size", 10, "--epochs", 1, "--learning-rate", 0.01)
    options = (*options, "--accumulate-grad-batches", 2, "--devices", 2)
    reference = train("pt", tmp_path / "a", *options)
    other = train(implementation, tmp_path / "b", *options, "--mode", mode)
    message = find_departure(reference, other, 1e-12)
    assert message is None, message
    assert_arrays_agree(reference, other, "model.safetensors", 1e-12)


@pytest.mark.quick("pt-lenet")
@pytest.mark.parametrize(
    ("implementation", "model", "size"), [("pt", "lenet", 17), ("tf", "lenet", 17), ("pt", "resnet50", 64)]
)
def test_each_network_has_two_stages(tmp_path, implementation, model, size):
    """The other networks have them in the scenarios above; layers of lenet have other names in Keras."""
    options = ("--dataset", "synthetic", "--image-shape", size, size + 1, 3, "--train-size", 8, "--test-size", 5)
    options = (*options, "--model", model, "--batch-size", 4, "--epochs", 1, "--precision", 64)
    reference = train(implementation, tmp_path / "one", *options)
    pipeline = train(implementation, tmp_path / "two", *options, "--strategy", "pipeline")
    assert_the_same(reference, pipeline, 1e-10, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "mode"), [("tf", "plain"), ("ptl", "tuned")])
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
@pytest.mark.parametrize(
    ("implementation", "mode", "more"),
    [
        ("pt", "plain", ("--precision", "16-mixed")),
        ("ptl", "tuned", ("--precision", "16-mixed")),
        ("pt", "tuned", ("--precision", "bf16-mixed")),
        ("pt", "tuned", ("--compile", "true")),
        ("ptl", "plain", ("--save-first-batch", "true")),
    ],
)
def test_sharded_weights_with_other_settings(tmp_path, implementation, mode, more):
    options = (*COLOURS, "--model", "cnn", "--batch-size", 12, "--epochs", 4, "--optimizer", "adamw")
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


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "mode"), [("pt", "tuned"), ("ptl", "plain")])
def test_replicas_that_normalise_their_own_shards_are_evaluated_alike(tmp_path, implementation, mode):
    options = (*SCENARIOS["normalised"], "--sync-batchnorm", "false", "--devices", 2)
    reference = train("pt", tmp_path / "ddp", *options)
    other = train(implementation, tmp_path / "fsdp", *options, "--mode", mode, "--strategy", "fsdp")
    assert_the_same(reference, other, 1e-10, steps=56)


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
with pipeline.layers_placed(experiment.network, config):
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
    print(devices.count("CPU:0"), devices.count("CPU:1"), len(devices))
"""


@pytest.mark.slow
def test_tensorflow_computes_each_stage_on_its_device():
    """Checks both passes and the update. The first stage has 3 of the 9 convolutions."""
    said = run(sys.executable, "-c", PLACES, OMP_NUM_THREADS="1").stdout.splitlines()
    assert said[:2] == ["3 6 9", "3 6 9"]
    first, second, total = map(int, said[2].split())  # square roots in Adam's update rule
    assert 0 < first < second and first + second == total


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
