PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo check test format docs

# Real sentences through the bundled model and its drafter; the last line says what drafting gains here.
demo: $(VENV)/.installed
	$(BIN)/spec2seq translate --input examples/sentences.txt --stats

# One torch thread per worker: tiny models gain nothing from more, and two workers would fight for the cores.
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -q -n 2

# What CI runs. Needs no network once everything is installed.
check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTEST)

# For every commit: under two minutes.
test: $(VENV)/.installed-dev
	$(PYTEST) -m 'not exhaustive and not slow and not gpu and not network'

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed
	$(BIN)/python docs/write_options.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps make a second run start at once; a changed pyproject.toml installs anew.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(VENV)/.installed $@
