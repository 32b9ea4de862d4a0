"""docs/gallery.md: commands as in docs/gallery.py; pictures exist, are small, and suit light and dark screens."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from made_up import MadeUp, comparison

from comparison.show.report.charts import PALETTES
from docs import gallery


def test_the_page_has_every_exhibit_with_its_command_and_pictures():
    page = gallery.PAGE.read_text()
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == [exhibit.title for exhibit in gallery.EXHIBITS]
    assert re.findall(r"^python compare.py .*$", page, re.MULTILINE) == [
        exhibit.command for exhibit in gallery.EXHIBITS
    ]
    shown = re.findall(r'<img src="gallery/(.*?)"', page)
    assert shown == [f"{exhibit.name}-{chart}.svg" for exhibit in gallery.EXHIBITS for chart in exhibit.charts]
    assert {path.name for path in gallery.PICTURES.iterdir()} == set(shown)


def test_pictures_are_small_and_dark_on_a_dark_screen():
    for path in gallery.PICTURES.iterdir():
        text = path.read_text()
        ElementTree.fromstring(text)  # well-formed
        assert len(text) < 50_000 and "prefers-color-scheme: dark" in text
        for colour in (colour for palette in PALETTES for colour in palette):
            assert text.count(colour) == 1, (path, colour)  # only where the palette defines it


@pytest.mark.parametrize("exhibit", gallery.EXHIBITS, ids=lambda value: value.name)
def test_a_section_is_made_of_a_comparison(exhibit, tmp_path):
    kinds = {"devices": {"sweep": ["devices=1,2"], "scaling": "strong", "threads_per_device": 1}}
    kinds["batch-size"] = {"sweep": ["batch-size=16,64"]}
    options = kinds.get(exhibit.name, {}) | {"repeats": 3, "target_accuracy": 0.8}
    speed = {"tf": 1000, "pt": 2000, "ptl": 1500}
    summary = comparison(tmp_path, lambda job: MadeUp(speed=speed[job.implementation] + job.round), **options)
    charts = gallery.pictures(exhibit, summary)
    text = gallery.section(exhibit, summary, charts)
    assert tuple(chart.name for chart in charts) == exhibit.charts
    assert exhibit.command in text and "same training: yes" in text and text.count("<img") == 2
