"""Additional runs of a row that are not measured: with a profiler, or to check learning. No table contains them."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.platform.files import write_text, writing
from common.spec.options import Mode
from comparison.jobs import Variant, row_title
from comparison.launchers import Launcher, Quietly
from comparison.program import Program
from comparison.store import LOG_FILE, Request, last_lines

FAILURE_FILE = "failure.txt"  # why a run has no result, in one line


@dataclass(frozen=True)
class SideRun:
    """An additional run of a row.

    Attributes:
      path: its run folder, relative to the comparison's folder.
      changes: options that differ from those of the row's measured runs, and their values.
    """

    path: Path
    variant: Variant
    implementation: str
    mode: Mode
    changes: dict[str, Any]

    @property
    def title(self) -> str:
        return row_title(self.implementation, self.mode)


@dataclass(frozen=True)
class SideRunner:
    """Makes additional runs in the comparison's folder; `say` is called with messages for people."""

    folder: Path
    launcher: Launcher
    request: Request
    say: Callable[[str], None]

    def make(self, doing: str, missing: str, runs: Sequence[SideRun]) -> None:
        """Makes `runs` one after the other. Replaces what earlier runs have left there, and reports a failed run.

        Args:
          doing: begins the message before the runs; the rows' titles follow: `profiling 10 steps of`.
          missing: begins the message about a failed run; the row's title follows: `no profile of`.
        """
        if not runs:
            return
        self.say(f"{doing} {', '.join(dict.fromkeys(run.title for run in runs))}")
        titles = {self.folder.absolute() / run.path: run.title for run in runs}
        for run_dir in titles:
            with writing(run_dir):
                shutil.rmtree(run_dir, ignore_errors=True)

        def ended(run_dir: Path, failure: str | None) -> None:
            if failure is not None:
                log = run_dir.relative_to(self.folder.absolute()) / LOG_FILE
                run_dir.mkdir(parents=True, exist_ok=True)
                write_text(run_dir / FAILURE_FILE, ": ".join([failure, *last_lines(run_dir / LOG_FILE, 1)]))
                self.say(f"{missing} {titles[run_dir]}: {failure}; see {log}")

        groups = [[self._program(run)] for run in runs]
        self.launcher.run(groups, 1, self.request.options.timeout, Quietly(ended))

    def _program(self, run: SideRun) -> Program:
        options = self.request.options
        plain = {"logger": (), "checkpoint_every": None, "profile": None, "seed": options.all_seeds[0]}
        changes = {**plain, "mode": run.mode, "run_dir": self.folder.absolute() / run.path, **run.changes}
        return Program(
            implementation=run.implementation,
            interpreter=options.interpreters()[run.implementation],
            config=run.variant.config.replace(**changes),
            session=len(self.request.commands),
        )
