"""The check of a user's port: right ports pass, mistakes are found, placed and named."""

import json
import shutil
import sys

import pytest
from conftest import REPOSITORY, run

EXAMPLE, MANY, EQUAL = "port/example", "tests/port/many_layers", "tests/port/equal_branches"


def check(*options, status=0):
    return run(sys.executable, "-m", "port", *map(str, options), cwd=REPOSITORY, expect=status)


@pytest.mark.parametrize(
    ("ports", "options"),
    [
        (["jax"], (EXAMPLE, "--implementations", "pt", "jax")),  # tf.py is in the test of planted mistakes
        pytest.param(["tf", "jax"], (MANY, "--image-shape", 9, 9, 3), marks=pytest.mark.slow),
        pytest.param(["tf"], (EQUAL, "--image-shape", 9, 9, 3), marks=pytest.mark.slow),
    ],
)
def test_right_ports_pass(ports, options):
    output = " ".join(check("--network", *options).stdout.split())
    assert all(f"{name}.py is the network of pt.py" in output for name in ports)
    assert "departs" not in output


@pytest.mark.slow
def test_layers_paired_by_hand_are_paired_so(tmp_path):
    folder = shutil.copytree(REPOSITORY / EXAMPLE, tmp_path / "mynet")
    names = folder / "names.yaml"
    for content, status, line in [
        ("tf: {dense: dense1}", 0, "tf.py is the network of pt.py"),
        ("tf: {dense: dense2}", 2, "names.yaml: dense is dense with {'kernel': (32, 64), 'bias': (64,)}, dense2"),
        ("tf: {dense_9: dense1}", 2, f"{names}: tf.py has no layer dense_9, only batch_normalization, "),
        ("tf: {dense: head}", 2, f"{names}: the reference has no layer head, only conv1, "),
        ("tf: dense", 2, f"{names}: should have lines such as `tf: "),
    ]:
        names.write_text(content)
        ended = check("--network", folder, "--implementations", "pt", "tf", status=status)
        assert line in " ".join(f"{ended.stdout} {ended.stderr}".split()), content


@pytest.mark.slow
def test_planted_mistakes_are_found_placed_and_named(tmp_path):
    output = run(sys.executable, "-W", "ignore", "-m", "tests.port.mistakes", tmp_path, cwd=REPOSITORY).stdout
    answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(answers) == 41
    assert [answer for answer in answers if answer["missing"]] == []


def test_mistakes_of_the_user_are_told_in_one_line(tmp_path):
    (tmp_path / "pt.py").write_text("def make_network(shape, classes):\n    raise ValueError('no\\n\\n layer')\n")
    assert "needs two of pt.py, tf.py, jax.py, has pt.py" in check("--network", tmp_path, status=2).stderr
    (tmp_path / "tf.py").write_text("")
    assert "has no jax.py" in check("--network", tmp_path, "--implementations", "pt", "jax", status=2).stderr
    error = check("--network", tmp_path, status=2).stderr
    assert error.count("\n") == 1
    assert "error: pt.py, line 2: ValueError: no layer" in error
    (tmp_path / "pt.py").write_text("def make_networks(): pass\n")
    assert "pt.py: has no function make_network(" in check("--network", tmp_path, status=2).stderr
    assert "no such folder" in check("--network", tmp_path / "nowhere", status=2).stderr
