"""Profiles: each row gets a separate run with the framework's profiler, which would slow down a measured run."""

from pathlib import Path

from common.platform.errors import UserError
from common.platform.files import read_model
from common.record.profile import PROFILE_FILE, Profile
from common.record.recorder import WARMUP_STEPS
from common.spec.options import TrainConfig
from comparison.jobs import Values, row_path
from comparison.side_runs import SideRunner

PROFILES_DIR = "profiles"


def profile_path(variant: Values, name: str) -> Path:
    """The folder of a row's profiled run, relative to the comparison's folder."""
    return row_path(PROFILES_DIR, variant, name)


def read_profile(folder: Path, variant: Values, name: str) -> Profile | None:
    """The profile of a row of the comparison in `folder`; None if there is none."""
    return _read(folder / profile_path(variant, name))


def _read(run_dir: Path) -> Profile | None:
    try:
        return read_model(Profile, run_dir / PROFILE_FILE)
    except UserError:  # not requested, or the run has failed, which was reported then
        return None


def make_profiles(runner: SideRunner, number: int) -> None:
    """Profiles `number` steps of each row in each variant, where a profile is missing. Reports a failed run."""

    def profiled(config: TrainConfig) -> TrainConfig:
        # As short as it can be: warm-up, and the steps in one epoch.
        steps = 3 * (number + WARMUP_STEPS)
        return config.replace(
            profile=number, max_steps=steps if config.max_steps == -1 else min(steps, config.max_steps)
        )

    def is_made(run_dir: Path) -> bool:
        found = _read(run_dir)
        return found is not None and found.num_steps >= number

    runner.make(f"profiling {number} steps of", "no profile of", profile_path, profiled, is_made)
