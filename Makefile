# make compare: everything from an empty machine to the table. make test: everything to a tested tree.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# The tested versions, where they were tested; elsewhere the newest that requirements.txt allows.
CONSTRAINTS = $(shell $(PYTHON) -c 'import platform as p, sys; v = sys.version_info[:2]; \
	print("-c constraints.txt" if (v, sys.platform, p.machine()) == ((3, 11), "linux", "x86_64") else "")')

compare: $(VENV)/.installed
	$(VENV)/bin/python compare.py $(ARGS)

test: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest $(ARGS)

# The long runs: MNIST to its accuracy, and whatever else is marked slow; one at a time, since some measure time.
test-slow: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -m slow -n 0 $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python requirements.txt constraints.txt
	$(VENV)/bin/python -m pip install -r requirements.txt $(CONSTRAINTS)
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(VENV)/bin/python -m pip install -r requirements-dev.txt $(CONSTRAINTS)
	touch $@

.PHONY: compare test test-slow
