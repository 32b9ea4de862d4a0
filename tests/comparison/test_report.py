"""report.html, as a browser shows it, and as a file."""

import re
import shutil
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from made_up import MadeUp, answers, comparison, made_up_turns, report
from PIL import Image

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

CHARTS = {"loss", "accuracy", "throughput", "breakdown"}
SWEEP_CHARTS = {"sweep-speed-up", "sweep-images-per-second", "sweep-final-accuracy"}
SWEEP_CHARTS |= {"sweep-target-steps", "sweep-target-seconds"}
EXPECTED = {
    "simple": CHARTS,
    "turns": CHARTS | {"turns"},
    "sweep": {f"{name}{suffix}" for name in CHARTS for suffix in ("", "-2", "-3")} | SWEEP_CHARTS,
}


def noisy(job):
    devices = int(dict(job.variant.values).get("devices", 1))
    return MadeUp(
        speed={"tf": 8000, "pt": 27000, "ptl": 25500}[job.implementation]
        * devices**0.8
        * (1 + 0.05 * ((job.round * 3) % 5) + 0.02 * job.seed),
        accuracies=(0.6, 0.97, 0.98 if job.implementation == "pt" else 0.985),
        loss_factor=1 + 1e-7 * (job.implementation != "tf"),
    )


def in_turns(job, count=40):
    """The machine drifts; in every tenth turn another program slows PyTorch down; a round begins every hour."""
    own = {"tf": 8000, "pt": 27000, "ptl": 25500}[job.implementation]
    hit = [job.implementation == "pt" and number % 10 == 3 for number in range(count)]
    noise = np.random.default_rng(job.round).normal(1, 0.02, count)
    speeds = own * (1 + 0.3 * np.sin(np.arange(count) / 9)) * noise / np.where(hit, 5, 1)
    turns = made_up_turns(speeds.tolist(), 3600.0 * job.round, loads=[0.6 * element for element in hit])
    return MadeUp(speed=own, turns=turns, proof_factor=2.0 if job.implementation == "ptl" else 1.0)


MADE = {
    "simple": (noisy, {"repeats": 5, "seeds": [0, 1], "target_accuracy": 0.95}),
    "sweep": (noisy, {"repeats": 3, "sweep": ["devices=1,2"], "target_accuracy": 0.95}),
    "turns": (in_turns, {"repeats": 2}),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A function that returns the folder of a comparison of MADE, with its report."""
    made = {}

    def make(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            facts, options = MADE[kind]
            comparison(made[kind], facts, **options)
            report(made[kind])
        return made[kind]

    return make


# --- In a browser ---


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; Debian's package is called chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM)
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


# What makes the page wider than the window.
CUT_OFF = """() => [...document.querySelectorAll("body *")].filter(one =>
  !one.closest("svg") && !(one.closest(".scroll") && !one.matches(".scroll")) &&
  one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5).map(one => one.tagName)"""
# Of each figure: its id, and whether it is drawn.
DRAWN = """() => [...document.querySelectorAll("figure")].map(figure => {
  const image = figure.querySelector("img"), box = image.getBoundingClientRect();
  return [figure.id, image.complete && image.naturalWidth > 200 && box.width > 200 && box.height > 60];
})"""


@pytest.mark.parametrize(
    ("kind", "width", "scheme"), [("turns", 1400, "dark"), pytest.param("sweep", 400, "light", marks=pytest.mark.slow)]
)
def test_every_figure_is_drawn_and_nothing_is_cut_off(folder_of, browser, kind, width, scheme):
    page = opened(browser, folder_of(kind), width, color_scheme=scheme)
    drawn = dict(page.evaluate(DRAWN))
    assert drawn.keys() == EXPECTED[kind] and all(drawn.values()), drawn
    assert page.evaluate(CUT_OFF) == []
    page.emulate_media(media="print")
    assert page.evaluate(CUT_OFF) == [] and page.complaints == []
    page.close()


# --- What the first screen says ---


def test_the_first_screen_answers_what_a_reader_asks(tmp_path):
    started = {"tf": 3.2, "pt": 1.9, "ptl": 3.6}

    def make(job):
        memory = {"tf": 700, "pt": 750, "ptl": 800}[job.implementation] * 2**20
        changes = {"startup_seconds": started[job.implementation], "peak_memory_bytes": memory}
        return MadeUp(speed=noisy(job).speed, other_load=0.3 * (job.round == 2), changes=changes)

    comparison(tmp_path / "5", make, repeats=5)
    found = answers(tmp_path / "5")
    assert found["Which is fastest?"][1].startswith("PyTorch trained 3.38 times as fast as TensorFlow (")
    assert found["Which starts fastest?"] == ["PyTorch, 1.9 s (TensorFlow 3.2, Lightning 3.6)."]
    assert found["Which needs the least memory?"] == ["TensorFlow, 700 MiB (PyTorch 750, Lightning 800)."]
    assert found["Was it the same training?"][0].startswith("same training: yes")
    assert found["How reliable is this?"] == [
        "4 of 5 rounds of paired runs, on one machine; one seed, so accuracy and loss have no spread. The ranges in"
        " brackets are 95 % intervals. Read the 1 warning below first."
    ]
    comparison(tmp_path / "0", lambda job: MadeUp(failure="exit status 1"))
    assert answers(tmp_path / "0") == {}
    comparison(tmp_path / "alone", make, implementations=["pt"])
    assert answers(tmp_path / "alone")["Which is fastest?"] == ["Nothing to compare: only one row has a speed."]


def all_disturbed(job):
    loads = [0.8 * (job.implementation == "pt")] * 40
    turns = made_up_turns([8000.0 if job.implementation == "tf" else 500.0] * 40, loads=loads)
    return MadeUp(speed=3000, other_load=0.6, turns=turns)


# The facts, the options, and how reliable the speeds are.
TRUST = [
    (
        in_turns,
        2,
        "2 rounds, with 72 pairs of turns, on one machine; one seed, so accuracy and loss have no spread. The",
    ),
    (in_turns, 1, "1 round, with 36 pairs of turns, on one machine"),
    (all_disturbed, 1, "Not very: other programs used 80% of the cores in every round"),
    (lambda job: MadeUp(speed=None), 1, "Speed is not measured: training is too short to measure a speed"),
    (lambda job: MadeUp(proof_factor=1.0 + (job.name == "pt")), 1, "Speed is not measured: no other row is proved"),
]


@pytest.mark.parametrize(("make", "repeats", "trust"), TRUST)
def test_it_tells_how_many_rounds_and_turns_count_or_why_none_do(tmp_path, make, repeats, trust):
    comparison(tmp_path, make, implementations=["tf", "pt"], repeats=repeats)
    assert answers(tmp_path)["How reliable is this?"][0].startswith(trust)


# --- The page as a file ---


def test_it_is_one_small_page_that_needs_nothing_else(folder_of):
    page = (folder_of("simple") / "report.html").read_text()
    assert len(page) < 5e6
    assert not re.findall(r"<(?:link(?! rel=\"icon\")|iframe|script)|@import|url\((?!#)|src=\"(?!data:)", page)
    words = re.sub(r'src="data:.*?"', "", page)
    assert "@@" not in words and "None" not in words and "nan" not in words
    assert "git checkout aaaa" in words and "made-up" in words
    for name in CHARTS:
        assert np.asarray(Image.open(folder_of("simple") / "figures" / f"{name}.png").convert("L")).std() > 5
        ElementTree.parse(folder_of("simple") / "figures" / f"{name}.svg")  # well-formed


def test_the_gallery_shows_first_what_they_disagree_on(folder_of):
    page = (folder_of("simple") / "report.html").read_text()
    images = re.findall(r'<li><img src="data:.*?</li>', page, re.DOTALL)
    assert len(images) == 7  # 355 images minus 98 % of them, rounded
    who = [re.findall(r"([✓✗]) .*?: (.*)</div>", image) for image in images]
    assert who == [[("✓", "TensorFlow, Lightning"), ("✗", "PyTorch")]] * 2 + [[("✗", "all rows")]] * 5


def test_names_are_shown_as_they_are(tmp_path):
    folder = tmp_path / "<b>&'x"
    names = ["$\\frac$", "$x^2$", "a_b", "100 %", "<b>", "&amp;", "\\", "~", "{}", "ß"]

    def make(job):
        return MadeUp(failure="<script>alert(1)</script>" if job.name == "tf" else None, changes={"class_names": names})

    comparison(folder, make, implementations=["tf", "pt"])
    page = report(folder)
    assert "<script>alert" not in page and "&lt;script&gt;" in page


def test_what_runs_do_not_have_is_left_out_of_the_page(tmp_path):
    comparison(tmp_path / "failed", lambda job: MadeUp(failure="exit status 1"))
    assert "<h1>" in report(tmp_path / "failed")
    comparison(tmp_path / "short", lambda job: MadeUp(speed=None, accuracies=(0.9,)), implementations=["tf", "pt"])
    page = report(tmp_path / "short")
    assert 'id="breakdown"' in page and not re.search('id="(accuracy|loss|throughput)', page)  # one epoch is no curve
