"""Writes `report.html`, one page that needs no other files, and the figures as separate files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.implementations import implementation_title
from common.platform.files import write_text
from common.record.profile import PROFILE_DIR, TRACE_FILE
from comparison.measure.comparison import Comparison
from comparison.measure.table import Table
from comparison.plan.jobs import row_path, shown_variant
from comparison.ratios import MIN_ROUNDS, WARM_UP_FROM
from comparison.run.side_runs import PROFILES_DIR, read_profile
from comparison.run.store import Run
from comparison.show.report.charts import Chart, draw_charts
from comparison.show.report.curve_figures import accuracy_over_seconds, learning_curves, loss_over_epochs
from comparison.show.report.gallery import find_mistakes
from comparison.show.report.speed_figures import seconds_by_phase, speed_bars, turns
from comparison.show.report.sweep_figures import study_charts
from comparison.show.sentences import conclusions, findings, remarks, study_conclusions, what_was_compared
from comparison.show.tables import in_one_line, legend, row_tables, study_tables

FIGURES_DIR = "figures"
REPORT_FILE = "report.html"
MAX_DRAWN = 8  # tables with figures and pictures; the tables of a sweep's further variants have only numbers
TEMPLATES = Path(__file__).parent / "templates"


def write_report(comparison: Comparison) -> None:
    """Writes `report.html` and `figures/*.svg` and `.png`."""
    folder = comparison.folder / FIGURES_DIR
    folder.mkdir(exist_ok=True)
    study, request = comparison.study, comparison.request
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["in_one_line"] = in_one_line
    results = [run.result for run in comparison.ended if run.result]
    first = None if study else next((table for table in comparison.tables if table.first_result), None)
    sections = []
    for number, table in enumerate(comparison.tables):
        figures = table_charts(table) if number < MAX_DRAWN else ()
        charts = draw_charts(figures, folder, f"-{table.number}" if table.number > 1 else "")
        sections.append(_section(comparison.folder, table, charts, found=table is not first))
    page = environment.get_template("report.html.j2").render(
        title=_title(comparison),
        comparison=comparison,
        request=request,
        findings=findings(comparison, first) if first else {},
        study_found=study_conclusions(study) if study else [],
        sections=sections,
        study=study,
        study_tables=study_tables(study) if study else [],
        study_charts=draw_charts(study_charts(study), folder) if study else [],
        legend=legend,
        modes=request.options.modes,
        remarks=remarks(comparison),
        figures_dir=FIGURES_DIR,
        machines=list({result.machine.model_dump_json(): result.machine for result in results}.values()),
        device_names=sorted({result.device_name for result in results}),
        versions=_versions(comparison.ended),
        commits=sorted({str((result.git or {}).get("commit", "unknown")) for result in results}),
        dirty=any((result.git or {}).get("dirty") for result in results),
        configuration=request.config.model_dump_json(exclude={"run_dir", "dry_run"}, indent=2),
        min_rounds=MIN_ROUNDS,
        warm_up_from=WARM_UP_FROM,
    )
    write_text(comparison.folder / REPORT_FILE, page)


def _title(comparison: Comparison) -> str:
    config = comparison.request.config
    names = [implementation_title(name) for name in comparison.request.options.implementations]
    return f"{config.network_name} on {config.dataset_name}: {', '.join(names)}"


def _section(folder: Path, table: Table, charts: list[Chart], found: bool) -> dict[str, Any]:
    """What the template shows of one table. `found`: whether it has the conclusions."""
    main = row_tables(table.rows, details=False)
    mistakes, count = find_mistakes(table) if charts else ([], 0)
    paths = {row.title: row_path(PROFILES_DIR, table.variant, row.name) for row in table.rows}
    profiles = [  # the row's title, its profile, the path of its trace
        (title, profile, str(path / PROFILE_DIR / TRACE_FILE))
        for title, path in paths.items()
        if (profile := read_profile(folder / path))
    ]
    return {
        "variant": shown_variant(table.variant),
        "lines": what_was_compared(table),
        "found": conclusions(table) if found else [],
        "rows": table.rows,
        "main": main,
        "details": row_tables(table.rows)[len(main) :],
        "charts": charts,
        "mistakes": mistakes,
        "num_mistakes": count,
        "profiles": profiles,
    }


def _versions(runs: Sequence[Run]) -> pd.DataFrame:
    """Text: the versions of each package, with a column for each implementation."""
    lines = [
        (package, implementation_title(run.record.implementation), version)
        for run in runs
        if run.result
        for package, version in run.result.versions.items()
    ]
    versions = pd.DataFrame(lines, columns=["package", "title", "version"]).drop_duplicates()
    texts = versions.groupby(["package", "title"], sort=False)["version"].agg(", ".join)
    return texts.unstack(fill_value="", sort=False)


def table_charts(table: Table) -> Iterator[Chart]:
    """All charts for which the runs of a table have numbers."""
    charts = (speed_bars, turns, seconds_by_phase, accuracy_over_seconds, loss_over_epochs, learning_curves)
    for chart in charts if table.finished else ():
        yield from chart(table.finished)
