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
from comparison.plan.jobs import Contender, Variant, contenders, row_path
from comparison.plan.request import Request
from comparison.run.program import Program, RunEnd
from comparison.run.runner import Follower, run_programs
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

    def make(
        self,
        doing: str,
        missing: str,
        place: tuple[str, str],
        change: Callable[[TrainConfig], TrainConfig],
        is_made: Callable[[Path], object],
    ) -> None:
        """Makes the missing runs one after the other. Replaces what earlier ones have left, and reports a failed run.

        Args:
          doing: begins the message before the runs; the rows' titles follow: `profiling 10 steps of`.
          missing: begins the message about a failed run; the row's title follows: `no profile of`.
          place: the folder of these runs in the comparison's folder, see `row_path`, and in a row's folder.
          change: from the options of a variant, without what additional runs reset, to those of the additional run.
          is_made: whether what is wanted is in a run folder.
        """
        kind, step = place
        programs = []
        for variant in self.variants:
            changed = change(variant.config.made_for("side run", seed=self.request.options.seeds[0]))
            for row in contenders(self.request.options):
                run_dir = self.folder.absolute() / row_path(kind, dict(variant.values), row.name) / step
                if not is_made(run_dir):
                    config = changed.replace(mode=row.mode, run_dir=run_dir)
                    programs.append(Program.of(self.request, row.implementation, config))
                    with writing(run_dir):
                        shutil.rmtree(run_dir, ignore_errors=True)
        if not programs:
            return

        def title(program: Program) -> str:
            return Contender(program.implementation, program.config.mode).title

        def note(program: Program, ended: RunEnd) -> None:
            if ended.failure is not None:
                log = program.run_dir / LOG_FILE
                write_text(program.run_dir / FAILURE_FILE, ": ".join([ended.failure, *log_end(log, 1)]))
                shown = log.relative_to(self.folder.absolute())
                self.say(f"{missing} {title(program)}: {ended.failure}; see {shown}")

        self.say(f"{doing} {', '.join(dict.fromkeys(map(title, programs)))}")
        run_programs(programs, self.request.options.timeout, Follower(note))


# --- Profiles: a profiler would slow down a measured run ---


def read_profile(run_dir: Path) -> Profile | None:
    """The profile of a profiled run; None if there is none."""
    try:
        return read_json_model(Profile, run_dir / PROFILE_FILE)
    except UserError:  # not requested, or the run has failed, which was reported then
        return None


def make_profiles(runner: SideRunner, number: int) -> None:
    """Profiles `number` steps of each row in each variant, where a profile is missing. Reports a failed run."""

    def profiled(config: TrainConfig) -> TrainConfig:
        steps = 3 * (number + WARMUP_STEPS)  # as short as it can be: warm-up, and the steps in one epoch
        most = steps if config.max_steps == -1 else min(steps, config.max_steps)
        return config.replace(profile=number, max_steps=most)

    def is_made(run_dir: Path) -> bool:
        profile = read_profile(run_dir)
        return profile is not None and profile.num_steps >= number

    runner.make(f"profiling {number} steps of", "no profile of", (PROFILES_DIR, ""), profiled, is_made)
