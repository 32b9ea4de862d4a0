"""Profiles: each row gets a separate run with the framework's profiler, which would slow down a measured run."""

from collections.abc import Sequence
from pathlib import Path

from common.platform.errors import UserError
from common.platform.files import read_model
from common.record.profile import PROFILE_FILE, Profile
from common.record.recorder import WARMUP_STEPS
from common.spec.options import Mode
from comparison.jobs import Values, Variant, row_name, row_path
from comparison.side_runs import SideRun, SideRunner

PROFILES_DIR = "profiles"


def profile_path(variant: Values, name: str) -> Path:
    """The folder of a row's profiled run, relative to the comparison's folder."""
    return row_path(PROFILES_DIR, variant, name)


def read_profile(folder: Path, variant: Values, name: str) -> Profile | None:
    """The profile of a row of the comparison in `folder`; None if there is none."""
    try:
        return read_model(Profile, folder / profile_path(variant, name) / PROFILE_FILE)
    except UserError:  # not requested, or the run has failed, which was reported then
        return None


def make_profiles(
    runner: SideRunner, number: int, variants: Sequence[Variant], contenders: Sequence[tuple[str, Mode]]
) -> None:
    """Profiles `number` steps of each contender in each variant, where a profile is missing. Reports a failed run."""
    runs = []
    for variant in variants:
        values, limit = dict(variant.values), variant.config.max_steps
        # As short as it can be: warm-up, and the steps in one epoch.
        steps = 3 * (number + WARMUP_STEPS)
        changes = {"profile": number, "max_steps": steps if limit == -1 else min(steps, limit)}
        for implementation, mode in contenders:
            name = row_name(implementation, mode)
            found = read_profile(runner.folder, values, name)
            if not found or found.num_steps < number:
                runs.append(SideRun(profile_path(values, name), variant, implementation, mode, changes))
    runner.make(f"profiling {number} steps of", "no profile of", runs)
