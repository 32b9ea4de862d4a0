"""Sweeps: how speed grows with devices and nodes, and what the other options change."""

import re

import pytest
from made_up import MadeUp, comparison, shown

PT = {"implementations": ["pt"], "threads_per_device": 1}


def speed_ups(folder, make, **options):
    """The lines of the first table, up to the headings: the row -> (speed-up, efficiency in percent)."""
    comparison(folder, make, **options)
    lines = re.findall(r"^(\d \S+, .*?) {2,}.* ([\d.]+) +\S+ +(\d+)%$", shown(folder, width=200), re.MULTILINE)
    return {name: (float(speed_up), int(efficiency)) for name, speed_up, efficiency in lines}


def of(**factors):
    """A function that gives each run a speed; `factors`: "devices_scaling" -> factor, on a machine that drifts."""

    def make(job):
        values = dict(job.variant.values)
        factor = factors[f"x{values.get('devices') or values.get('num-nodes')}_{values['scaling']}"]
        return MadeUp(speed=1000 * factor * (1 + 0.2 * (job.round % 3)))

    return make


def test_speed_up_and_efficiency_are_from_pairs_with_the_fewest_devices(tmp_path):
    make = of(x1_strong=1.0, x2_strong=1.6, x2_weak=1.9, x4_strong=2.0, x4_weak=3.6)
    assert speed_ups(tmp_path / "devices", make, sweep=["devices=1,2,4"], repeats=4, **PT) == {
        "1 PyTorch, strong": (1.0, 100),
        "2 PyTorch, strong": (1.6, 80),
        "2 PyTorch, weak": (1.9, 95),
        "4 PyTorch, strong": (2.0, 50),
        "4 PyTorch, weak": (3.6, 90),
    }
    make = of(x1_strong=1.0, x1_weak=1.1, x2_strong=1.6, x2_weak=2.09)
    assert speed_ups(tmp_path / "nodes", make, sweep=["num-nodes=1,2"], repeats=4, devices=2, **PT) == {
        "1 PyTorch, strong": (1.0, 100),
        "1 PyTorch, weak": (1.0, 100),
        "2 PyTorch, strong": (1.6, 80),
        "2 PyTorch, weak": (1.9, 95),
    }
    assert "PyTorch, weak: 1.90 times as fast on 2 nodes (1.90 to 1.90), 95% of the ideal" in shown(tmp_path / "nodes")


def test_nodes_times_devices_is_what_counts(tmp_path):
    def root(job):
        values = dict(job.variant.values)
        return MadeUp(speed=1000 * (int(values["num-nodes"]) * int(values["devices"])) ** 0.5)

    options = {"sweep": ["num-nodes=1,2", "devices=1,2"], "repeats": 3, "scaling": "strong", **PT}
    assert speed_ups(tmp_path, root, **options) == {
        "1 PyTorch, 1, strong": (1, 100),
        "2 PyTorch, 1, strong": (1.41, 71),
        "2 PyTorch, 2, strong": (1.41, 71),
        "4 PyTorch, 2, strong": (2, 50),
    }


@pytest.mark.parametrize(
    ("sweep", "speeds", "sentences"),
    [
        (
            "devices=1,4",
            {"tf": {"1": 1000, "4": 2000}, "pt": {"1": 3000, "4": 6000}},
            [
                "PyTorch, strong: 2.00 times as fast with 4 devices (2.00 to 2.00), 50% of the ideal",
                "same training: yes, proved for each in 64-bit runs: losses differ by at most 0",
            ],
        ),
        (
            "schedule=constant,cosine",
            {"tf": {"constant": 900, "cosine": 2000}, "pt": {"constant": 1000, "cosine": 1500}},
            ["TensorFlow: fastest with schedule cosine (2,000 images/s), slowest with constant (900); test accuracy"],
        ),
    ],
)
def test_a_sweep_is_reported_in_sentences(tmp_path, sweep, speeds, sentences):
    def make(job):
        (option, value), *_ = job.variant.values
        return MadeUp(speed=speeds[job.implementation][value])

    options = {"implementations": ["tf", "pt"], "repeats": 3, "sweep": [sweep], "threads_per_device": 1}
    comparison(tmp_path, make, **options, **({"scaling": "strong"} if "devices" in sweep else {}))
    printed = shown(tmp_path, width=60)
    assert [line for line in sentences if line not in printed] == [], printed
    table = printed[printed.index("images/s") : printed.index("the tables of each variant")]
    assert max(map(len, table.splitlines())) <= 60 and "…" not in table  # columns that do not fit stand below
