"""Shows the results: on the terminal, in files, as a page."""
