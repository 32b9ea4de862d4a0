"""A network of the user's: the same training in each framework, and proved to be so."""

import re
import shutil
import sys

import numpy as np
import pytest
from conftest import REPOSITORY, changed_code, compare, run, train
from mistakes import MISTAKES
from test_audits import audited

from common.platform.files import read_safetensors
from common.record.checkpoints import checkpoint_dir
from common.record.results import EpochLine, read_metrics, read_result, read_step_losses
from common.spec.own_network import Layout, read_layout

EXAMPLE = REPOSITORY / "port" / "example"
STEPS = ("--model", EXAMPLE, "--precision", 64, "--epochs", 1, "--verify-steps", 20, "--log-every-n-steps", 20)
# What TensorFlow computes in 32 bits whatever the precision: here the constants of gelu.
LARGEST = {"pt": 1e-13, "ptl": 1e-13, "tf": 1e-10, "keras": 1e-10, "jax": 1e-13}


def test_a_layout_takes_canonical_arrays_there_and_back():
    """An array of the framework's may hold several, as packed kernels of attention do; counters are left out."""
    layout = Layout({"a.kernel": (2, 3), "b.bias": (2,), "c.bias": (2,)}, {"w": np.array([[0, 3], [1, 4], [2, 5]])})
    layout.places["packed"] = np.array([6, 7, 8, 9])
    arrays = {"a.kernel": np.arange(6.0).reshape(2, 3), "b.bias": np.ones(2), "c.bias": np.zeros(2)}
    native = layout.to_native(arrays)
    np.testing.assert_array_equal(native["w"], arrays["a.kernel"].T)
    assert native["packed"].tolist() == [1, 1, 0, 0]
    back = layout.to_canonical(native | {"counter": np.array(3)})
    assert back.keys() == arrays.keys() and all((back[name] == arrays[name]).all() for name in arrays)
    assert list(layout.to_native({"a.kernel": arrays["a.kernel"]})) == ["w"]  # such as the slots of some parameters


# The sum over the classes of binary cross-entropies.
LOSSES = {
    "pt.py": """
def loss(outputs, labels):
    targets = F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(1)
""",
    "tf.py": """
def loss(outputs, labels):
    targets = keras.ops.one_hot(labels, outputs.shape[1], dtype=outputs.dtype)
    return keras.ops.sum(keras.ops.binary_crossentropy(targets, outputs, from_logits=True), axis=1)
""",
    "jax.py": """
def loss(outputs, labels):
    targets = jax.nn.one_hot(labels, outputs.shape[1], dtype=outputs.dtype)
    return optax.sigmoid_binary_cross_entropy(outputs, targets).sum(1)
""",
}

# The squared distance from a point that belongs to the class: a regression of three outputs.
TARGETS = "import numpy as np\n\nTARGETS = np.sin(np.arange(30.0)).reshape(10, 3)\n"
DISTANCES = {
    "pt.py": """
def loss(outputs, labels):
    return ((outputs - torch.as_tensor(TARGETS, dtype=outputs.dtype, device=outputs.device)[labels]) ** 2).sum(1)
""",
    "tf.py": """
def loss(outputs, labels):
    targets = keras.ops.take(keras.ops.cast(TARGETS, outputs.dtype), labels, axis=0)
    return keras.ops.sum((outputs - targets) ** 2, axis=1)
""",
    "jax.py": """
def loss(outputs, labels):
    return ((outputs - jax.numpy.asarray(TARGETS, outputs.dtype)[labels]) ** 2).sum(1)
""",
}


@pytest.fixture
def networks(tmp_path):
    """Name -> folder; in `example` nothing drops; `sigmoids` and `points` have a loss of their own and no gelu."""
    shutil.copytree(EXAMPLE, tmp_path / "example")
    for path in (tmp_path / "example").glob("*.py"):
        path.write_text(re.sub(r"Dropout\(0.25", "Dropout(0.0", path.read_text()))
    shutil.copytree(tmp_path / "example", tmp_path / "sigmoids")
    for path in (tmp_path / "sigmoids").glob("*.py"):
        text = re.sub(r"gelu(.*), approximate=False", r"relu\1", path.read_text()).replace("gelu", "relu")
        path.write_text(text.replace("import jax\n", "import jax\nimport optax\n") + LOSSES[path.name])
    shutil.copytree(tmp_path / "sigmoids", tmp_path / "points")
    for path in (tmp_path / "points").glob("*.py"):
        text = re.sub(r"(Linear\(64, |Dense\()num_classes", r"\g<1>3", path.read_text().removesuffix(LOSSES[path.name]))
        path.write_text(f"from targets import TARGETS\n{text}{DISTANCES[path.name]}")
    (tmp_path / "points" / "targets.py").write_text(TARGETS)
    own = {name: tmp_path / name for name in ("example", "sigmoids", "points")}
    return {"vit": REPOSITORY / "port" / "vit", **own}


ONE_DEVICE = [("pt", "plain"), ("tf", "plain"), ("jax", "plain"), ("ptl", "tuned"), ("keras", "tutorial")]
TWO_DEVICES = [("pt", "plain"), ("tf", "plain"), ("jax", "tuned")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "combinations"),
    [
        ("example", [*((*one, 1) for one in ONE_DEVICE), *((*one, 2) for one in TWO_DEVICES)]),
        (
            "sigmoids",
            [*((*one, 1) for one in (*ONE_DEVICE, ("pt", "tutorial"), ("ptl", "tutorial"))), ("keras", "plain", 1)],
        ),
        (
            "points",
            [("pt", "plain", 1), ("tf", "tutorial", 1), ("jax", "tuned", 1), *((*one, 2) for one in TWO_DEVICES)],
        ),
    ],
)
def test_every_step_and_evaluation_agrees(tmp_path, networks, network, combinations):
    """In all modes, on one device and on two."""
    runs = {}
    for implementation, mode, devices in combinations:
        name = f"{implementation}-{mode}-{devices}"
        more = ("--model", networks[network], "--mode", mode, "--devices", devices)
        runs[name] = train(implementation, tmp_path / name, *STEPS, *more)
    for name, folder in runs.items():
        devices = name.rpartition("-")[2]
        reference = runs[f"pt-plain-{devices}"]
        largest = LARGEST[name.partition("-")[0]] if network == "example" else 1e-13
        for read in (read_step_losses, lambda path: [line.test_loss for line in read_metrics(path, EpochLine)]):
            np.testing.assert_allclose(read(folder), read(reference), rtol=largest, err_msg=name)
        weights = read_safetensors(folder / "model.safetensors")
        for key, array in read_safetensors(reference / "model.safetensors").items():
            np.testing.assert_allclose(weights[key], array, rtol=0, atol=1e-8, err_msg=f"{name}: {key}")


@pytest.mark.slow
def test_attention_and_own_parameters_agree(tmp_path):
    """PyTorch packs the kernels of attention. Keras computes it in 32 bits whatever the precision."""
    options = (*STEPS, "--model", REPOSITORY / "port" / "vit", "--optimizer", "adam")
    losses = [read_step_losses(train(name, tmp_path / name, *options)) for name in ("pt", "tf")]
    np.testing.assert_allclose(*losses, rtol=1e-7)


@pytest.mark.slow
def test_another_framework_goes_on(tmp_path, networks):
    """PyTorch's training, and PyTorch goes on with theirs."""
    options = ("--model", networks["sigmoids"], "--precision", 64, "--train-size", 340, "--epochs", 3)
    options += ("--optimizer", "adam", "--checkpoint-every", 6)
    whole = train("pt", tmp_path / "whole", *options)
    for name, mode in (("tf", "plain"), ("jax", "tuned"), ("keras", "tutorial"), ("ptl", "plain")):
        there = train(name, tmp_path / name, *options, "--mode", mode, "--resume", checkpoint_dir(whole, 6))
        back = train("pt", tmp_path / f"{name}-pt", *options, "--resume", checkpoint_dir(there, 12))
        for resumed, step in ((there, 6), (back, 12)):
            assert read_result(resumed).resumed_from == step
            np.testing.assert_allclose(read_step_losses(resumed), read_step_losses(whole), rtol=1e-11, err_msg=name)


TRAINED = ("--epochs", 3, "--train-size", 340, "--batch-size", 32)
SOUND = [
    ("pt", "plain", "example", ("--devices", 2, "--gradient-clip-val", 0.5)),
    ("tf", "plain", "example", ("--devices", 2, "--sync-batchnorm", "true")),
    ("jax", "tuned", "example", ("--label-smoothing", 0.1, "--accumulate-grad-batches", 2)),
    ("keras", "tutorial", "vit", ("--optimizer", "adam")),
    ("ptl", "tuned", "vit", ("--optimizer", "adamw", "--random-crop", 2)),
    ("pt", "tuned", "sigmoids", ("--optimizer", "adam")),
    ("tf", "tuned", "sigmoids", ("--devices", 2)),
    ("jax", "plain", "sigmoids", ("--gradient-clip-val", 0.5)),
    ("tf", "plain", "points", ()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "mode", "network", "options"), SOUND)
def test_steps_and_evaluations_of_sound_runs_pass(tmp_path, networks, implementation, mode, network, options):
    read_layout(str(networks[network]), (8, 8, 1), 10, "tf" if implementation in ("pt", "ptl") else "pt")
    options = ("--model", networks[network], "--mode", mode, *TRAINED, *options)
    audits = audited(implementation, tmp_path / "run", *options, steps=(1, 9, 11, 12))
    assert audits.evaluations and all(audit.same for audit in (*audits.steps, *audits.evaluations)), audits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "mistake"),
    [
        ("pt", "half a batch in 32 bits"),
        ("pt", "a schedule that is one step late"),
        ("tf", "the first row's Adam with epsilon inside the root"),
    ],
)
def test_a_mistake_of_the_timed_run_alone_is_found(tmp_path, networks, implementation, mistake):
    file, before, after, note, *options = MISTAKES[mistake]
    code = changed_code(tmp_path / "code", file, before, after)
    options = ("--model", networks["example"], *TRAINED, *options)
    audits = audited(implementation, tmp_path / "run", *options, steps=(1, 11, 12, 23), cwd=code)
    assert any(note in audit.note for audit in audits.different), audits


@pytest.mark.slow
def test_compare_trains_proves_and_measures_it(tmp_path):
    options = ("--model", EXAMPLE, "--implementations", "tf", "pt", "--epochs", 2)
    text, (first, second) = compare(tmp_path / "r", *options)
    assert "pairing the layers of tf.py, pt.py" in text and "timed runs: not audited" in text
    assert (second["same_training"], first["status"], second["status"]) == ("True", "ok", "ok")
    assert float(second["ratio"]) > 0
    assert (tmp_path / "r" / "network" / "example" / "tf.py").read_text() == (EXAMPLE / "tf.py").read_text()


@pytest.mark.slow
def test_a_regression_has_a_loss_and_no_accuracy(tmp_path, networks):
    """In the tables, on the page, and where the trained network is used."""
    options = ("--model", networks["points"], "--implementations", "tf", "pt", "ptl", "--epochs", 2)
    text, rows = compare(tmp_path / "r", *options)
    assert "accuracy" not in text and "same training: yes" in text
    assert all(float(row["test_loss"]) > 0 and row["test_accuracy"] == "" for row in rows), rows
    assert "accuracy" not in (tmp_path / "r" / "results.md").read_text().lower()
    weights = next((tmp_path / "r").glob("runs/**/pt/model.safetensors"))
    done = run(sys.executable, "-m", "pt_impl", "evaluate", "--weights", weights, expect=2)
    assert "has other outputs than a score for each class" in done.stderr


MEAN = "def loss(outputs, labels):\n    return F.cross_entropy(outputs, labels)\n\n\ndef make_"
OWN = f"{LOSSES['pt.py']}\n\ndef make_"
REFUSED = [
    ("tf.py", "epsilon=1e-5", "epsilon=1e-3", "tf.py departs at norm1"),
    ("pt.py", "def make_", MEAN, "TypeError: loss returns shape (), not (7,); it must return the loss of each example"),
    ("pt.py", "def make_", OWN, "tf.py departs in the loss: pt.py has a function loss, tf.py takes the cross-entropy"),
    ("pt.py", "64, num_classes", "64, 9", "TypeError: the network returns 9 outputs for 10 classes"),
    ("pt.py", "return Network(image", "raise ValueError('no')\n    return Network(image", "ValueError: no"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "old", "new", "said"), REFUSED)
def test_what_is_not_the_same_network_is_refused_in_a_line(tmp_path, file, old, new, said):
    folder = shutil.copytree(EXAMPLE, tmp_path / "mynet")
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    done = run(sys.executable, "compare.py", "--model", folder, "--implementations", "tf", "pt", expect=2)
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
