"""A trained residual network of torchvision makes the same predictions in every framework."""

import json
import sys

import pytest
from conftest import CPU, run, run_program

TORCHVISIONS = """
import json, sys, torch, torchvision
from pathlib import Path
from common.experiment import Experiment
from common.platform.files import write_safetensors
from common.spec.options import TrainConfig
from pt_impl.data import Prepare
from pt_impl.weights import get_weights
torch.manual_seed(0)
network = torchvision.models.resnet50(num_classes=10).double()
network.train()(torch.randn(4, 3, 64, 64).double())  # statistics that are not those of the beginning
images = {"dataset": "synthetic", "image_shape": (64, 64, 3), "train_size": 2, "test_size": 5}
experiment = Experiment.make(TrainConfig(**images, model="resnet50", precision="64"))
dataset = experiment.dataset
write_safetensors(Path(sys.argv[1]) / "weights.safetensors", get_weights(network, experiment.network))
with torch.inference_mode():
    logits = network.eval()(Prepare(experiment).normalised(torch.from_numpy(dataset.test_images)))
loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(dataset.test_labels)).item()
print(json.dumps([loss, logits.argmax(dim=1).tolist(), dataset.test_labels.tolist()]))
"""


@pytest.mark.slow
def test_torchvisions_resnet50_gives_the_same_answers(tmp_path):
    loss, guesses, labels = json.loads(run(sys.executable, "-c", TORCHVISIONS, tmp_path).stdout)
    options = ("--model", "resnet50", "--dataset", "synthetic", "--image-shape", 64, 64, 3, "--test-size", 5)
    options = (*options, "--precision", 64, "--weights", tmp_path / "weights.safetensors", "--format", "json", *CPU)
    for implementation in ("tf", "pt", "jax"):
        found = json.loads(run_program(implementation, "evaluate", *options).stdout)
        assert found["test_loss"] == pytest.approx(loss, rel=1e-12)
        assert found["test_correct"] == sum(guess == label for guess, label in zip(guesses, labels, strict=True))
