# `make demo` and `make test` set up a virtual environment and do everything on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check slow clean

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev,heic]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/pipeline demo --out demo

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

test: check
	$(BIN)/python -m pytest

slow: $(VENV)/installed
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV) build dist *.egg-info
