"""Additional runs of a row, which are not measured: to check learning, or with the framework's profiler."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.platform.errors import UserError
from common.platform.files import read_json_model, write_text, writing
from common.record.profile import PROFILE_FILE, Profile
from common.record.recorder import WARMUP_STEPS
from common.spec.options import TrainConfig
from comparison.plan.jobs import Values, Variant, contenders, row_path
from comparison.plan.request import Request
from comparison.run.follower import QuietFollower
from comparison.run.groups import run_groups
from comparison.run.program import Program
from comparison.run.store import FAILURE_FILE, LOG_FILE, log_end

PROFILES_DIR = "profiles"


@dataclass(frozen=True)
class SideRunner:
    """Makes an additional run of each row in each variant, in the comparison's folder.

    Attributes:
      say: called with messages for people.
    """

    folder: Path
    request: Request
    variants: Sequence[Variant]
    say: Callable[[str], None]
    run: Callable[..., None] = run_groups

    def make(
        self,
        doing: str,
        missing: str,
        path: Callable[[Values, str], Path],
        change: Callable[[TrainConfig], TrainConfig],
        is_made: Callable[[Path], object],
    ) -> None:
        """Makes the missing runs one after the other. Replaces what earlier ones have left, and reports a failed run.

        Args:
          doing: begins the message before the runs; the rows' titles follow: `profiling 10 steps of`.
          missing: begins the message about a failed run; the row's title follows: `no profile of`.
          path: from a variant and the name of a row to the run folder, relative to the comparison's folder.
          change: from the options of a variant, without what additional runs reset, to those of the additional run.
          is_made: whether what is wanted is in a run folder.
        """
        programs: dict[Path, Program] = {}
        titles = {}
        for variant in self.variants:
            changed = change(variant.config.made_for("side run", seed=self.request.options.seeds[0]))
            for contender in contenders(self.request.options):
                run_dir = self.folder.absolute() / path(dict(variant.values), contender.name)
                if not is_made(run_dir):
                    titles[run_dir] = contender.title
                    config = changed.replace(mode=contender.mode, run_dir=run_dir)
                    programs[run_dir] = Program.of(self.request, contender.implementation, config)
        if not programs:
            return
        self.say(f"{doing} {', '.join(dict.fromkeys(titles.values()))}")
        for run_dir in programs:
            with writing(run_dir):
                shutil.rmtree(run_dir, ignore_errors=True)

        def ended(run_dir: Path, failure: str | None) -> None:
            if failure is not None:
                log = run_dir.relative_to(self.folder.absolute()) / LOG_FILE
                run_dir.mkdir(parents=True, exist_ok=True)
                write_text(run_dir / FAILURE_FILE, ": ".join([failure, *log_end(run_dir / LOG_FILE, 1)]))
                self.say(f"{missing} {titles[run_dir]}: {failure}; see {log}")

        groups = [[program] for program in programs.values()]
        self.run(groups, 1, self.request.options.timeout, QuietFollower(ended))


# --- Profiles: a profiler would slow down a measured run ---


def profile_path(variant: Values, name: str) -> Path:
    """The folder of a row's profiled run, relative to the comparison's folder."""
    return row_path(PROFILES_DIR, variant, name)


def read_profile(folder: Path, variant: Values, name: str) -> Profile | None:
    """The profile of a row of the comparison in `folder`; None if there is none."""
    return _read(folder / profile_path(variant, name))


def _read(run_dir: Path) -> Profile | None:
    try:
        return read_json_model(Profile, run_dir / PROFILE_FILE)
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
        run = _read(run_dir)
        return run is not None and run.num_steps >= number

    runner.make(f"profiling {number} steps of", "no profile of", profile_path, profiled, is_made)
