import ast

from comparison.show.report.training_code import pieces
from docs.side_by_side import ELSEWHERE, GROUPS, SECTIONS, code, make_page


def test_everything_in_these_files_is_on_the_page():
    page = make_page()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [*SECTIONS]
    for name in (name for group in GROUPS for name in group):
        text = code(name)
        shown = {one for section in SECTIONS.values() for one in section[name]} | {*ELSEWHERE.get(name, ())}
        whole = {one for one in shown if "." not in one}
        top = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        for one in pieces(text):
            owner = one.partition(".")[0]
            assert one in shown or owner in whole or (one in top and any(s.startswith(f"{one}.") for s in shown)), one
