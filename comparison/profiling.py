"""Profiles: each row gets a separate run with the framework's profiler, which would slow down a measured run."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.platform.errors import UserError
from common.platform.files import read_model, writing
from common.record.profile import PROFILE_FILE, Profile
from common.record.recorder import WARMUP_STEPS
from common.spec.options import Mode
from comparison.jobs import Values, Variant, row_name, row_title, variant_name
from comparison.launchers import Launcher, Quietly
from comparison.program import Program
from comparison.store import LOG_FILE, Request

PROFILES_DIR = "profiles"


def profile_path(variant: Values, name: str) -> Path:
    """The folder of a row's profiled run, relative to the comparison's folder."""
    return Path(*filter(None, [PROFILES_DIR, variant_name(variant), name.replace(" ", "-")]))


def read_profile(folder: Path, variant: Values, name: str) -> Profile | None:
    """The profile of a row of the comparison in `folder`; None if there is none."""
    try:
        return read_model(Profile, folder / profile_path(variant, name) / PROFILE_FILE)
    except UserError:  # no profile was asked for, or the run has failed, which was reported then
        return None


@dataclass(frozen=True)
class ProfileMaker:
    """Makes the profiles that are missing in the comparison's folder; `say`: called with messages for people."""

    folder: Path
    launcher: Launcher
    request: Request
    say: Callable[[str], None]

    def make(self, number: int, variants: Sequence[Variant], contenders: Sequence[tuple[str, Mode]]) -> None:
        """Profiles `number` steps of each contender in each variant. A failed run is reported, and has no profile."""
        groups, titles = [], {}
        for variant in variants:
            values = dict(variant.values)
            for implementation, mode in contenders:
                name = row_name(implementation, mode)
                found = read_profile(self.folder, values, name)
                if found and found.num_steps >= number:
                    continue
                run_dir = self.folder.absolute() / profile_path(values, name)
                with writing(run_dir):
                    shutil.rmtree(run_dir, ignore_errors=True)
                titles[run_dir] = row_title(implementation, mode)
                groups.append([self._program(number, variant, implementation, mode, run_dir)])
        if not groups:
            return
        self.say(f"profiling {number} steps of {', '.join(dict.fromkeys(titles.values()))}")

        def ended(run_dir: Path, failure: str | None) -> None:
            if failure is not None:
                log = run_dir.relative_to(self.folder.absolute()) / LOG_FILE
                self.say(f"no profile of {titles[run_dir]}: {failure}; see {log}")

        self.launcher.run(groups, 1, self.request.options.timeout, Quietly(ended))

    def _program(self, number: int, variant: Variant, implementation: str, mode: Mode, run_dir: Path) -> Program:
        """A short run: long enough for the warm-up and for `number` steps within one epoch."""
        options, limit = self.request.options, variant.config.max_steps
        steps = 3 * (number + WARMUP_STEPS)
        config = variant.config.replace(
            mode=mode,
            seed=options.all_seeds[0],
            max_steps=steps if limit == -1 else min(steps, limit),
            profile=number,
            run_dir=run_dir,
            logger=(),
            checkpoint_every=None,
        )
        return Program(
            implementation=implementation,
            interpreter=options.interpreters()[implementation],
            config=config,
            session=len(self.request.commands),
        )
