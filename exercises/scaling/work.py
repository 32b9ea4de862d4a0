"""A scaling analysis: speed-up, efficiency, and what Amdahl's law predicts for more devices than you have.

python scaling.py                measures one and two devices first (half a minute)
python scaling.py FOLDER         analyses a comparison that was made before
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from common.platform.ending import as_program
from comparison import load

Seconds = dict[int, list[float]]  # number of devices: the training seconds of each round, for the same work
MEASURE = (
    "--mode plain --implementations pt --sweep devices=1,2 --scaling strong --repeats 3 --epochs 1 --batch-size 256"
    " --dataset synthetic --image-shape 28 28 1 --train-size 3072 --test-size 256"
)


def read_seconds(folder: Path) -> dict[str, Seconds]:
    """The training seconds of a comparison's runs, for each implementation and mode. Start-up is not included."""
    runs = load(folder).runs.dropna(subset="training_seconds")
    if runs["batch_size"].nunique() != 1:
        raise SystemExit(f"{folder}: needs runs of the same work (--scaling strong)")
    found = {}
    for names, of_row in runs.groupby(["implementation", "mode"], sort=False):
        rounds = of_row.pivot(index=["seed", "round"], columns="devices", values="training_seconds").dropna()
        if 1 not in rounds:
            raise SystemExit(f"{folder}: {' '.join(names)} needs runs with 1 device, too")
        found[" ".join(names)] = rounds.to_dict("list")
    return found


# The functions below get dictionaries whose keys are in any order, and do not change them.
def typical(seconds: Seconds) -> dict[int, float]:
    """A typical time for each number of devices, which one slow or one fast round in three must not change."""
    # Gap 1
    ### BEGIN SOLUTION
    return {devices: float(np.median(samples)) for devices, samples in sorted(seconds.items())}
    ### END SOLUTION


def speed_up(seconds: dict[int, float]) -> dict[int, float]:
    """The factor by which N devices are faster than one device at the same work, for each N."""
    # Gap 2
    ### BEGIN SOLUTION
    return {devices: seconds[1] / found for devices, found in seconds.items()}
    ### END SOLUTION


def efficiency(speed_ups: dict[int, float]) -> dict[int, float]:
    """The share of the devices' time that is useful; above 1 if N devices are more than N times as fast as one."""
    # Gap 3
    ### BEGIN SOLUTION
    return {devices: found / devices for devices, found in speed_ups.items()}
    ### END SOLUTION


def serial_share(seconds: dict[int, float]) -> float:
    """The share of the work that does not become faster with more devices.

    Amdahl (1967): N devices take a + b / N seconds. The share is a / (a + b). By least squares, with a >= 0 and b >= 0.
    """
    # Gap 4: one equation for each number of devices: 1 * a + 1/N * b = seconds. scipy.optimize.nnls solves them.
    ### BEGIN SOLUTION
    rows = [[1.0, 1.0 / devices] for devices in seconds]
    (a, b), _ = nnls(np.array(rows), np.array(list(seconds.values())))
    return float(a / (a + b))
    ### END SOLUTION


def predict(share: float, devices: int) -> float:
    """The speed-up of `devices` devices, if `share` of the work is serial."""
    # Gap 5
    ### BEGIN SOLUTION
    return 1 / (share + (1 - share) / devices)
    ### END SOLUTION


def half_efficient(share: float) -> float:
    """The number of devices (it may be a fraction) at which the efficiency is a half, if `share` > 0 is serial."""
    # Gap 6: set predict(share, N) / N = 1/2.
    ### BEGIN SOLUTION
    return 1 + 1 / share
    ### END SOLUTION


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, help="a comparison's --output-dir; else one is made")
    folder = parser.parse_args().folder
    if folder:
        found = read_seconds(folder)
    else:
        print("measuring one and two devices, for half a minute", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "compare.py", *MEASURE.split(), "--output-dir", folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found = read_seconds(Path(folder))
    for implementation, rounds in found.items():
        seconds = typical(rounds)
        speed_ups = speed_up(seconds)
        print(f"{implementation}\n    devices  seconds  speed-up  efficiency")
        for devices, share in efficiency(speed_ups).items():
            print(f"{devices:11} {seconds[devices]:8.2f} {speed_ups[devices]:9.2f} {share:11.0%}")
        share = serial_share(seconds)
        print(f"serial share {share:.1%}; 8 devices would be {predict(share, 8):.1f} times as fast as one")
        by_round = [dict(zip(rounds, times, strict=True)) for times in zip(*rounds.values(), strict=True)]
        shares = sorted(serial_share(seconds) for seconds in by_round)
        print(f"of the single rounds: {', '.join(f'{share:.1%}' for share in shares)}")


if __name__ == "__main__":
    with as_program("scaling"):
        main()
