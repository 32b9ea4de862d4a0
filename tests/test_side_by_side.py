from docs.side_by_side import PAGE, make_page


def test_the_page_is_made_of_the_files_as_they_are():
    assert PAGE.read_text() == make_page(), "python docs/side_by_side.py makes it again"
