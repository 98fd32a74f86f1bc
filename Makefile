# `make demo` and `make test` set up a virtual environment and do everything on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check slow spice clean

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing PyTorch, Java and other packages into $(VENV): about 6 GB, some minutes"
	$(BIN)/python -m pip install --editable '.[heic]'
	touch $@

$(VENV)/tested: $(VENV)/installed
	$(BIN)/python -m pip install --editable '.[dev,heic]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/pipeline demo --out demo

check: $(VENV)/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

# SPICE's parser, fetched once into the data folder (XDG_DATA_HOME) where Maven is installed. Without
# it the tests that run SPICE are skipped and say so.
spice: $(VENV)/installed
	@if command -v mvn >/dev/null; then $(BIN)/pipeline setup spice || \
	    echo "SPICE could not be set up: the tests that run it are skipped" >&2; \
	else echo "Maven is not installed: the tests that run SPICE are skipped" >&2; fi

test: check spice
	$(BIN)/python -m pytest

slow: $(VENV)/tested spice
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV) build dist *.egg-info
