"""The page that shows the training files side by side."""

from docs.side_by_side import SECTIONS, make_page


def test_the_page_has_a_step_and_a_loop_of_each():
    page = make_page()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [*SECTIONS]
    assert page.count("def train(") == 5
