"""report.html, as a browser shows it."""

import ast
import html
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
import pytest
from jsonschema import ValidationError
from made_up import MadeUp, comparison, made_up_turns
from PIL import Image

from common.platform.errors import UserError
from comparison.measure.lines_of_code import count_lines, lines_of_training
from comparison.show.report.charts import draw
from comparison.show.report.gallery import find_mistakes
from comparison.show.report.page import table_charts, write_report
from comparison.show.report.training_code import training_code_of_rows
from comparison.show.report.turn_figures import MAX_TURNS, ticks
from comparison.show.sentences import findings
from comparison.show.tables import decision, row_tables

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# No network traffic of Chromium's own, and the flags that it needs in containers and as root.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
FLAGS += ["--disable-component-update", "--no-first-run"]

TABLE_CHARTS = [
    "time-to-target",
    "loss-epochs",
    "loss-seconds",
    "accuracy-epochs",
    "accuracy-seconds",
    "throughput",
    "ratio",
    "breakdown",
    "lockstep",
    "confusion-tf-ptl",
    "confusion-pt",
]
SWEEP_CHARTS = ["speed-up", "efficiency", "images-per-second"]
SWEEP_CHARTS += ["target-epochs", "target-steps", "target-seconds", "final-accuracy", "final-loss"]


def noisy(job):
    devices = int(dict(job.variant.values).get("devices", 1))
    return MadeUp(
        speed={"tf": 8000, "pt": 27000, "ptl": 25500}[job.implementation]
        * devices**0.8
        * (1 + 0.05 * ((job.round * 3) % 5) + 0.02 * job.seed),
        accuracies=(0.6, 0.97, 0.98 if job.implementation == "pt" else 0.985),
        loss_factor=1 + 1e-7 * (job.implementation != "tf"),
    )


@pytest.fixture(scope="module")
def simple(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simple")
    options = {"repeats": 5, "seeds": [0, 1], "target_accuracy": 0.95}
    write_report(comparison(folder, noisy, **options))
    return folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    write_report(
        comparison(folder, noisy, repeats=3, sweep=["devices=1,2"], target_accuracy=0.95, threads_per_device=1)
    )
    return folder


def in_turns(job, count=40):
    """The machine drifts; in every tenth turn another program slows PyTorch down; a round begins every hour."""
    own = {"tf": 8000, "pt": 27000, "ptl": 25500}[job.implementation]
    hit = [job.implementation == "pt" and number % 10 == 3 for number in range(count)]
    noise = np.random.default_rng(job.round).normal(1, 0.02, count)
    speeds = own * (1 + 0.3 * np.sin(np.arange(count) / 9)) * noise / np.where(hit, 5, 1)
    turns = made_up_turns(speeds.tolist(), 3600.0 * job.round, loads=[0.6 * element for element in hit])
    return MadeUp(speed=own, turns=turns, proof_factor=2.0 if job.implementation == "ptl" else 1.0)


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    folder = tmp_path_factory.mktemp("turns")
    write_report(comparison(folder, in_turns, repeats=2))
    return folder


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; Debian's package is called chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


def opened(browser, folder, width, **options):
    """Opens the page from the file system; `page.complaints` collects console messages, errors and network requests."""
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("requestfailed", lambda request: page.complaints.append(request.url))
    page.on(
        "request", lambda request: request.url.startswith(("file:", "data:")) or page.complaints.append(request.url)
    )
    page.goto((folder / "report.html").as_uri())
    return page


# Elements that extend beyond the window, except in scrollable parts, and marks that extend beyond their figure.
CUT_OFF = """() => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width) found.push("page " + document.documentElement.scrollWidth);
  for (const one of document.querySelectorAll("body *")) {
    if (one.closest("svg") || (one.closest(".scroll") && !one.matches(".scroll"))) continue;
    const box = one.getBoundingClientRect(), hides = getComputedStyle(one).overflowX == "hidden";
    if (box.width && (box.left < -0.5 || box.right > width + 0.5)) found.push(one.tagName + " " + box.right);
    if (hides && one.scrollWidth > one.clientWidth) found.push("hidden " + one.tagName);
  }
  for (const svg of document.querySelectorAll("figure svg")) {
    const frame = svg.getBoundingClientRect();
    for (const one of svg.querySelectorAll("text, .mark-symbol path, .mark-rect path, .mark-line path")) {
      const box = one.getBoundingClientRect();
      const aside = box.left < frame.left - 2 || box.right > frame.right + 2;
      const above = box.top < frame.top - 2 || box.bottom > frame.bottom + 2;
      if (box.width && (aside || above)) found.push(svg.closest("figure").id + " " + one.textContent);
    }
  }
  return found;
}"""
# Of each figure: its id, whether it is drawn, and whether it is described in words.
DRAWN = """() => [...document.querySelectorAll("figure")].map(figure => {
  const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
  const visible = one => { const box = one.getBoundingClientRect(); return box.width > 0 || box.height > 0; };
  const marks = [...svg.querySelectorAll("path, line, text")].filter(visible).length;
  const described = figure.querySelector("[role=img]:has(.chart)").getAttribute("aria-label").length > 40;
  return [figure.id, box.width > 200 && box.height > 60 && marks > 10, described];
})"""
# Ids of the figures in which a mark of the chart covers the legend.
COVERED = """() => [...document.querySelectorAll("figure")].filter(figure => {
  const below = [...figure.querySelectorAll(".mark-line path, .mark-rect.layer_0_marks path")];
  const top = Math.min(...below.map(one => one.getBoundingClientRect().top));
  return [...figure.querySelectorAll(".role-legend")].some(one => one.getBoundingClientRect().bottom > top + 2);
}).map(figure => figure.id)"""
COLOURS = """() => {
  const text = document.querySelector("figure text");
  const of = (one, name) => getComputedStyle(one)[name], dim = document.querySelector(".dim");
  return [of(document.body, "backgroundColor"), of(document.body, "color"), of(text, "fill"), of(dim, "color")];
}"""


def scrolled_through(page):
    """Scrolls to each chart, and waits until Vega has drawn it again."""
    charts = page.locator(".chart")
    for number in range(charts.count()):
        charts.nth(number).scroll_into_view_if_needed()
        page.wait_for_function(
            "n => document.querySelectorAll('.chart')[n].matches('.vega-embed:has(svg .mark-group)')", arg=number
        )
    page.evaluate("() => window.scrollTo(0, 0)")


@pytest.mark.quick("turns-dark-1400")
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["simple", "sweep", "turns"])
def test_every_figure_is_drawn_and_nothing_is_cut_off(request, browser, kind, width, scheme):
    page = opened(browser, request.getfixturevalue(kind), width, color_scheme=scheme)
    expected = set(TABLE_CHARTS)
    if kind == "turns":
        expected = expected - {"time-to-target", "confusion-tf-ptl", "confusion-pt"} | {"turns", "confusion-tf-pt-ptl"}
    if kind == "sweep":
        expected = {f"{name}{suffix}" for name in TABLE_CHARTS for suffix in ("", "-2", "-3")}
        expected |= {f"sweep-{name}" for name in SWEEP_CHARTS}
    for answers in (False, True):
        if answers:
            scrolled_through(page)
        drawn = page.evaluate(DRAWN)
        assert {name for name, *_ in drawn} == expected
        assert [name for name, visible, described in drawn if not (visible and described)] == []
        assert page.evaluate(CUT_OFF) == [] and page.evaluate(COVERED) == []
    assert page.complaints == []
    page.close()


@pytest.mark.quick("document.querySelector('h1').style.width = '900px'")
@pytest.mark.parametrize(
    "damage",
    [
        "document.querySelector('.scroll').className = ''",
        "document.querySelector('figure svg').setAttribute('viewBox', '0 0 200 223')",
        "document.querySelector('h1').style.width = '900px'",
    ],
)
def test_the_check_for_what_is_cut_off_can_fail(browser, simple, damage):
    page = opened(browser, simple, 400)
    page.evaluate(f"() => {{ {damage}; }}")
    assert page.evaluate(CUT_OFF) != []
    page.close()


def luminance(colour):
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def told(page):
    """The tooltip of the chart under the pointer: name -> value."""
    page.wait_for_timeout(200)
    rows = page.locator("#vg-tooltip-element.visible tr")
    return {name.strip(): value.strip() for name, value in (row.split("\t") for row in rows.all_inner_texts())}


def pointed_at(page, chart, across, down):
    """The tooltip at a point of a chart; `across`, `down`: shares of its width and height."""
    page.locator(f"#{chart}").scroll_into_view_if_needed()
    box = page.locator(f"#{chart} .chart").bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    return told(page)


@pytest.mark.slow
def test_a_dot_names_its_round(browser, simple):
    page = opened(browser, simple, 1400)
    scrolled_through(page)
    dots, found = page.locator("#throughput .mark-symbol path"), []
    assert dots.count() == 30
    for number in range(10, 20):
        dots.nth(number).hover()
        found.append(told(page))
    assert {(one["round"], one["seed"]) for one in found} == {(str(n), str(s)) for n in range(1, 6) for s in (0, 1)}
    assert {one["framework"] for one in found} == {"PyTorch"} and {one["counts"] for one in found} == {"yes"}
    page.close()


def test_a_pointer_reads_all_lines_at_once(browser, simple):
    page = opened(browser, simple, 400)
    scrolled_through(page)
    found = pointed_at(page, "accuracy-epochs", 0.95, 0.6)
    assert found == {"after epoch": "3", "TensorFlow": "98.59", "PyTorch": "98.03", "Lightning": "98.59"}
    found = pointed_at(page, "lockstep", 0.5, 0.6)
    assert {*found} == {"up to step", "PyTorch", "Lightning"} and 0 < float(found["PyTorch"]) < 1e-6
    assert page.complaints == []
    page.close()


@pytest.mark.slow
def test_a_legend_switches_rows(browser, simple):
    page = opened(browser, simple, 1400)
    scrolled_through(page)
    lines, names = page.locator("#accuracy-epochs .mark-line path"), page.locator("#accuracy-epochs .role-legend text")
    assert names.all_text_contents() == ["TensorFlow", "PyTorch", "Lightning"] and lines.count() == 6
    for clicked, left in ((0, 2), (2, 4), (0, 2), (2, 6)):
        names.nth(clicked).click()
        page.wait_for_timeout(200)
        assert lines.count() == left
    page.close()


def test_without_scripts_it_is_the_same_page(browser, simple):
    page = opened(browser, simple, 400, java_script_enabled=False)
    assert page.locator(".chart svg").count() == len(TABLE_CHARTS)
    assert page.locator(".chart svg text", has_text="TensorFlow").count() > 8
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background_in_figures_too(browser, simple, scheme):
    """The contrast is at least 4.5, as WCAG 2.1 (1.4.3) requires."""
    page = opened(browser, simple, 1400, color_scheme=scheme)
    colours = page.evaluate(COLOURS)
    background, *foregrounds = map(luminance, colours)
    assert (background < 0.05) == (scheme == "dark")
    for one in foregrounds:
        low, high = sorted((one, background))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colours
    page.close()


def test_on_paper_it_is_whole_and_black_on_white(browser, simple):
    page = opened(browser, simple, 718, color_scheme="dark")  # width of A4 without margins, at 96 dots per inch
    page.emulate_media(media="print")
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate(
        "() => [...document.querySelectorAll('table')].every(one => one.getBoundingClientRect().right <= 719)"
    )
    assert page.evaluate("() => [...document.querySelectorAll('details')].every(one => one.scrollHeight > 60)")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf(format="A4")) > 20_000
    page.close()


def test_the_page_says_what_a_reader_asks(browser, simple):
    page = opened(browser, simple, 1400)
    text = page.inner_text("body")
    for words in (
        "faster",
        "AMD" if "AMD" in text else "processor",
        "made-up",
        "git checkout aaaa",
        "python compare.py",
    ):
        assert words in text
    assert "±" in text and "10 rounds" in text
    assert page.locator(".gallery img").count() > 0
    assert page.evaluate(
        "() => [...document.querySelectorAll('.gallery img')].every(one => one.naturalWidth > 0 && one.alt)"
    )
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    page.close()


def test_the_verdict_is_on_the_first_screen_of_a_phone(browser, simple):
    page = opened(browser, simple, 400)
    verdict = page.locator(".findings p").first
    assert verdict.inner_text().startswith("PyTorch trained 1.0")
    assert verdict.bounding_box()["y"] + verdict.bounding_box()["height"] < 400
    questions = page.locator(".findings h2").all_inner_texts()
    assert questions[0] == "Which is fastest?" and "Was it the same training?" in questions
    page.close()


@pytest.mark.slow
def test_a_heading_sorts_the_table_to_decide_by(browser, simple):
    page = opened(browser, simple, 1400)
    names = page.locator(".sortable tbody th")
    assert names.all_text_contents() == ["TensorFlow", "PyTorch", "Lightning"]
    heading = page.locator(".sortable thead th", has_text="images/s")
    heading.locator("button").click()
    assert names.all_text_contents() == ["PyTorch", "Lightning", "TensorFlow"]
    assert heading.get_attribute("aria-sort") == "descending"
    heading.locator("button").press("Enter")
    assert names.all_text_contents() == ["TensorFlow", "Lightning", "PyTorch"]
    assert heading.get_attribute("aria-sort") == "ascending" and page.complaints == []
    page.close()


def test_the_nearer_to_the_best_the_darker(browser, simple):
    page = opened(browser, simple, 1400)
    column = page.locator(".sortable thead th").all_inner_texts().index("images/s") + 1  # the corner cell is not a th
    cells = page.locator(f".sortable tbody tr td:nth-child({column + 1})")
    shares = [float(re.search(r"--share: ([\d.]+)", cells.nth(row).get_attribute("style"))[1]) for row in range(3)]
    assert shares == pytest.approx([8000 / 27000, 1, 25500 / 27000], abs=0.01)
    colours = [cells.nth(row).evaluate("one => getComputedStyle(one).backgroundColor") for row in range(3)]
    assert len(set(colours)) == 3
    page.close()


# --- Without a browser ---


def found(folder, make=noisy, **options):
    summary = comparison(folder, make, **options)
    return {finding.question: finding.answers for finding in findings(summary, summary.tables[0])}


def test_the_first_screen_answers_what_a_reader_asks(tmp_path):
    started = {"tf": 3.2, "pt": 1.9, "ptl": 3.6}

    def make(job):
        memory = {"tf": 700, "pt": 750, "ptl": 800}[job.implementation] * 2**20
        changes = {"startup_seconds": started[job.implementation], "peak_memory_bytes": memory}
        return MadeUp(speed=noisy(job).speed, other_load=0.3 * (job.round == 2), changes=changes)

    answers = found(tmp_path / "5", make, repeats=5)
    assert answers["Which is fastest?"][1].startswith("PyTorch trained 3.38 times as fast as TensorFlow (")
    assert answers["Which starts fastest?"] == ["PyTorch, 1.9 s (TensorFlow 3.2, Lightning 3.6)."]
    assert answers["Which needs the least memory?"] == ["TensorFlow, 700 MiB (PyTorch 750, Lightning 800)."]
    assert answers["Was it the same training?"][0].startswith("same training: yes")
    assert answers["How reliable is this?"] == [
        "4 of 5 rounds of paired runs on one machine; 1 left out: other programs disturbed it; one seed, so accuracy"
        " has no spread. The ranges in brackets are 95 % intervals. Read the 1 warning below first."
    ]
    assert "Measure your own case" in answers["What next?"][0]
    answers = found(tmp_path / "1", make, repeats=1)
    assert answers["How reliable is this?"][0].startswith("Not very: 1 round of paired runs")
    assert "--resume DIR --repeats 5 runs more rounds" in answers["What next?"][0]
    assert found(tmp_path / "0", lambda job: MadeUp(failure="exit status 1")) == {}
    alone = found(tmp_path / "alone", make, implementations=["pt"])
    assert alone["Which is fastest?"] == ["Nothing to compare: only one row has a speed."]
    assert "Which starts fastest?" not in alone


def trusted(folder, make, **options):
    """The answers about reliability and what next, and the shares of the fastest in the table to decide by."""
    summary = comparison(folder, make, implementations=["tf", "pt"], **options)
    answers = {finding.question: finding.answers for finding in findings(summary, summary.tables[0])}
    table = decision(summary.tables[0])
    headings = [heading for heading, _ in table.headings]
    shares = [[cell.shown for cell in cells] for _, cells, _ in table.lines]
    found = [line[headings.index("of the fastest")] for line in shares] if "of the fastest" in headings else None
    return answers["How reliable is this?"][0], answers["What next?"][0], found


def test_it_tells_how_many_rounds_and_turns_count(tmp_path):
    trust, _, shares = trusted(tmp_path / "2", in_turns, repeats=2)
    assert trust.startswith("2 rounds on one machine, with 72 pairs of turns; 8 of 160 turns are left out: other")
    assert "these processes only" not in trust and shares == ["30%", "100%"]
    answers = found(tmp_path / "3", in_turns, repeats=2)  # Lightning trains differently: its pairs are of no ratio
    assert answers["How reliable is this?"][0].startswith("2 rounds on one machine, with 72 pairs of turns; 8 of 240")
    trust, step, _ = trusted(tmp_path / "1", in_turns, repeats=1)
    assert trust.startswith("1 round on one machine, with 36 pairs of turns; 4 of 80 turns are left out: other")
    assert "With one round they hold for these processes only: --repeats 5 adds rounds." in trust
    assert step.startswith("python compare.py --resume DIR --repeats 5 runs more rounds")

    def half(job):  # the second round is disturbed from its beginning to its end
        loads = [0.8 * (job.round == 2)] * 40
        return replace(in_turns(job), turns=made_up_turns([1000.0 + job.round] * 40, loads=loads))

    trust, _, shares = trusted(tmp_path / "half", half, repeats=2)
    assert trust.startswith("1 of 2 rounds on one machine, with 40 pairs of turns; 80 of 160 turns are left out: other")
    assert shares is None  # the same speed: there is no difference


def test_what_was_not_measured_is_reported_and_not_shown(tmp_path):
    def make(job, load=0.8):
        loads = [load * (job.implementation == "pt")] * 40
        turns = made_up_turns([8000.0 if job.implementation == "tf" else 500.0] * 40, loads=loads)
        return MadeUp(speed=3000, other_load=0.6, turns=turns)

    trust, step, shares = trusted(tmp_path / "busy", make, target_accuracy=0.5)
    assert trust.startswith("Speed is not measured: other programs used 60% of the cores; end other programs, leave")
    assert step.startswith("On a quieter machine, python compare.py --resume DIR --repeats 5") and shares is None
    (table,) = comparison(tmp_path / "again", make, implementations=["tf", "pt"], target_accuracy=0.5).tables
    headings = [heading for heading, _ in decision(table).headings]
    assert headings == ["test accuracy", "memory MiB", "lines of code", "same training"]  # no speed, no seconds
    for cells in row_tables(table.rows, details=False):
        assert not any(word in heading for heading in cells.columns for word in ("images/s", "ratio", "interval"))
    trust, _, _ = trusted(tmp_path / "keep", make, repeats=2, disturbed="keep")
    assert trust.startswith("2 rounds on one machine, with 80 pairs of turns; one seed")
    trust, _, _ = trusted(tmp_path / "short", lambda job: MadeUp(speed=None))
    assert trust.startswith("Speed is not measured: training is too short to measure a speed")
    trust, step, _ = trusted(tmp_path / "other", lambda job: MadeUp(proof_factor=1.0 + (job.implementation == "pt")))
    assert trust.startswith("Speed is not measured: no other row is proved to be the same training as the first one")


@pytest.mark.parametrize(("verify", "others"), [("auto", ["yes", "no"]), ("never", ["not checked"] * 2)])
def test_only_the_first_row_is_called_the_first_row(tmp_path, verify, others):
    summary = comparison(tmp_path, in_turns, verify=verify)
    table = decision(summary.tables[0])
    assert [cells[-1].shown for _, cells, _ in table.lines] == ["first row", *others]
    assert all(meaning for _, meaning in table.headings)


@pytest.mark.slow
def test_a_sweep_has_an_index_of_its_tables(browser, tmp_path):
    options = {"implementations": ["pt"], "verify": "never", "sweep": ["batch-size=16,32,48,64"]}
    write_report(comparison(tmp_path, noisy, **options))
    page = opened(browser, tmp_path, 400)
    links = page.locator(".index a")
    assert links.all_inner_texts() == [f"{n}: batch-size {16 * n}" for n in range(1, 5)]
    links.nth(3).click()
    assert page.locator("#table-4").bounding_box()["y"] < 100 and page.evaluate(CUT_OFF) == []
    page.close()


def test_the_training_steps_are_the_code_that_was_run(tmp_path, monkeypatch):
    monkeypatch.setattr("comparison.show.report.training_code.code_sha256", lambda: "0" * 64)
    names = ["pt", "keras", "ptl", "tf"]
    summary = comparison(tmp_path / "then", lambda job: MadeUp(), implementations=names, repeats=1)
    steps = training_code_of_rows(summary.tables[0])
    assert [step.title for step in steps] == ["PyTorch", "Keras", "Lightning", "TensorFlow"]
    for step, words in zip(steps, ("backward", "train_step", "training_step", "GradientTape"), strict=True):
        code = html.unescape(re.sub("<[^>]*>", "", step.html))
        assert words in code and ast.parse(code) and step.file.endswith("_impl/train.py")
    write_report(summary)
    assert "The training steps that were run" in (tmp_path / "then" / "report.html").read_text()
    monkeypatch.setattr("comparison.show.report.training_code.code_sha256", lambda: "1" * 64)  # the code has changed
    assert training_code_of_rows(summary.tables[0]) == []


def test_lines_of_code_are_those_that_do_something():
    source = '"""A\ndocstring."""\n\nimport os  # a comment\n\n# another\n'
    source += 'def f(\n    x,\n):\n    "short"\n    return """a\nb"""\n'
    assert count_lines(source) == 6
    plain, tuned = lines_of_training("pt", "plain"), lines_of_training("pt", "tuned")
    assert (
        100 < plain < 200 < tuned and lines_of_training("one", "plain") is lines_of_training("pt", "tutorial") is None
    )


def chart_of_turns(summary):
    """The chart's description in words, and the data of its ratios, their intervals, and the speeds."""
    (chart,) = (one for one in table_charts(summary.tables[0]) if one.name == "turns")
    data = chart.description["datasets"].values()
    frames = [pd.DataFrame(values) for values in data if len(values) and "row" in values[0]]
    (intervals,) = [frame for frame in frames if "low" in frame] or [None]
    speeds = max(frames, key=lambda one: one["row"].nunique())
    (ratios,) = [frame for frame in frames if frame is not intervals and frame is not speeds] or [None]
    return chart, ratios, intervals, speeds


def test_the_ratio_is_drawn_over_the_turns(tmp_path):
    chart, ratios, intervals, speeds = chart_of_turns(summary := comparison(tmp_path, in_turns, repeats=2))
    assert chart.title == "Speed ratio turn by turn" and "TensorFlow" in chart.words
    assert speeds.groupby("row").size().to_dict() == {"TensorFlow": 80, "PyTorch": 80, "Lightning": 80}
    assert {*ratios["row"]} == {"PyTorch"}  # Lightning trains differently: it has no ratio
    hit = ratios["turn"] % 10 == 4
    assert (ratios["counts"] == "no: disturbed").tolist() == hit.tolist() and hit.sum() == 8
    assert np.allclose(ratios["value"], 27000 / 8000 / np.where(hit, 5, 1), rtol=1e-3)  # neither drift nor noise
    speed = summary.tables[0].row("pt")
    assert intervals.iloc[0].to_dict() == {
        "row": "PyTorch",
        "value": speed.ratio,
        "low": speed.ratio_low,
        "high": speed.ratio_high,
    }
    assert 0 <= speeds["x"].min() < 1 and 79 < speeds["x"].max() < 82  # the hour between the rounds is left out
    assert speeds[speeds["round"] == 2]["x"].min() > speeds[speeds["round"] == 1]["x"].max()


def test_the_target_of_the_chart_is_that_of_the_table(tmp_path):
    (table,) = comparison(tmp_path, noisy, target_accuracy=0.95).tables
    (chart,) = (one for one in table_charts(table) if one.name == "time-to-target")
    assert "test accuracy of 95.00%" in chart.words


def test_speeds_are_drawn_over_the_turns_where_there_is_no_ratio(tmp_path):
    def make(job):
        return replace(in_turns(job), proof_factor=1.0 if job.implementation == "tf" else 2.0)

    chart, ratios, intervals, speeds = chart_of_turns(comparison(tmp_path, make, repeats=1))
    assert (chart.title, ratios, intervals) == ("Speed turn by turn", None, None) and len(speeds) == 120
    assert chart.svg.count("<svg") == 1


def test_of_many_turns_only_some_are_drawn(tmp_path):
    options = {"implementations": ["tf", "pt"], "repeats": 2}
    summary = comparison(tmp_path, lambda job: in_turns(job, 3000), **options)
    chart, ratios, _, speeds = chart_of_turns(summary)
    assert "one turn in 15" in chart.about
    assert MAX_TURNS // 2 < len(ratios) <= MAX_TURNS and len(speeds) <= 2 * MAX_TURNS
    assert len(chart.svg) < 400_000


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.97, 1.06, [0.98, 1, 1.02, 1.04, 1.06]),
        (0.3, 12, [0.5, 1, 2, 5, 10]),
        (5800, 9900, [6000, 7000, 8000, 9000]),
        (0.001, 40, [0.001, 0.01, 0.1, 1, 10]),
    ],
)
def test_logarithmic_axes_have_round_numbers(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_where_v8_would_end_the_process_there_is_no_report(tmp_path, monkeypatch):
    summary = comparison(tmp_path, noisy, repeats=1)
    monkeypatch.setattr("resource.getrlimit", lambda _: (2**36, 2**36))
    with pytest.raises(UserError, match="no report: its charts can't be drawn under ulimit -v 67108864"):
        write_report(summary)


def test_it_is_one_small_page_that_needs_nothing_else(simple, sweep, turns):
    for folder in (simple, sweep, turns):
        page = (folder / "report.html").read_text()
        assert len(page) < 5e6
        own = re.sub(r'<script type="module" id="vega">.*?</script>', "", page, flags=re.DOTALL)
        assert not re.findall(r"<(?:link(?! rel=\"icon\")|iframe)|@import|url\((?!#)|src=\"(?!data:)", own)
        kinds = set(re.findall(r"<script type=\"([^\"]*)\"", page))
        assert kinds == {"module", "application/json"} and page.count("<script") == page.count("</script>")
        words = re.sub(r"<script.*?</script>|<svg.*?</svg>", "", page, flags=re.DOTALL)
        assert "@@" not in words and "None" not in words and "nan" not in words


@pytest.mark.slow
def test_every_chart_fits_the_schema_of_vega_lite(simple, sweep, turns):
    for folder in (simple, sweep, turns):
        page = (folder / "report.html").read_text()
        descriptions = re.findall(r'<script type="application/json" id="[^"]*">(.*?)</script>', page, flags=re.DOTALL)
        assert len(descriptions) == page.count('-description"')
        for description in map(json.loads, descriptions):
            alt.Chart.from_dict(description, validate=True)
        with pytest.raises(ValidationError):
            alt.Chart.from_dict(json.loads(descriptions[0]) | {"autosize": "no such size"}, validate=True)


def test_figures_are_files_too(simple):
    names = sorted(path.stem for path in (simple / "figures").glob("*.svg"))
    assert names == sorted(TABLE_CHARTS) == sorted(path.stem for path in (simple / "figures").glob("*.png"))
    for name in names:
        ElementTree.parse(simple / "figures" / f"{name}.svg")  # well-formed
        pixels = np.asarray(Image.open(simple / "figures" / f"{name}.png").convert("L"))
        assert pixels.shape[1] > 500 and pixels.std() > 5


def test_reports_are_made_again_alike_and_forget_what_is_gone(tmp_path):
    summary = comparison(tmp_path, noisy, repeats=3)
    write_report(summary)
    first = (tmp_path / "report.html").read_text()
    for name in ("turns-9.png", "my-own.png"):
        (tmp_path / "figures" / name).write_bytes(b"")
    write_report(summary)
    assert (tmp_path / "report.html").read_text() == first
    assert not (tmp_path / "figures" / "turns-9.png").exists()
    assert (tmp_path / "figures" / "my-own.png").exists()


def test_a_single_epoch_makes_no_curve(tmp_path):
    summary = comparison(tmp_path, lambda job: MadeUp(accuracies=(0.9,)))
    names = [chart.name for chart in table_charts(summary.tables[0])]
    assert "lockstep" in names and not [name for name in names if name.startswith(("accuracy", "loss"))]


def test_the_gallery_shows_first_what_they_disagree_on(tmp_path):
    (table,) = comparison(tmp_path, noisy).tables
    mistakes, number = find_mistakes(table)
    assert number == 7 and len(mistakes) == 7  # 355 images minus 98 % of them, rounded
    said = [[(right, who) for _, _, right, who in mistake.guesses] for mistake in mistakes]
    assert said == [[(True, "TensorFlow, Lightning"), (False, "PyTorch")]] * 2 + [[(False, "all rows")]] * 5, said
    for one in mistakes:
        for guess, score, right, _ in one.guesses:
            assert (guess == one.label) == right and 0 < score <= 1


def test_names_are_shown_as_they_are(tmp_path):
    folder = tmp_path / "<b>&'x"
    write_report(comparison(folder, lambda job: MadeUp(failure="<script>alert(1)</script>")))
    page = (folder / "report.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_the_name_of_a_class_is_no_mathematics(tmp_path):
    names = ["$\\frac$", "$x^2$", "a_b", "100 %", "<b>", "&amp;", "\\", "~", "{}", "ß"]
    write_report(comparison(tmp_path, lambda job: MadeUp(changes={"class_names": names}), implementations=["pt"]))
    figure = (tmp_path / "figures" / "confusion-pt.svg").read_text()
    assert "$\\frac$" in figure and "$x^2$" in figure


@pytest.mark.parametrize("make", [lambda job: MadeUp(failure="exit status 1"), lambda job: MadeUp(speed=None)])
def test_failures_and_runs_too_short_for_a_speed_have_a_page_too(tmp_path, make):
    summary = comparison(tmp_path, make)
    write_report(summary)
    assert "<h1>" in (tmp_path / "report.html").read_text()


def test_runs_without_predictions_lack_only_what_is_made_of_them(tmp_path):
    summary = comparison(tmp_path, noisy, implementations=["pt"])
    for path in tmp_path.glob("runs/**/predictions.safetensors"):
        path.unlink()
    drawn = [one.name for one in draw(table_charts(summary.tables[0]), tmp_path)]
    assert "confusion-pt" not in drawn and "accuracy-epochs" in drawn
    assert find_mistakes(summary.tables[0]) == ([], 0)
