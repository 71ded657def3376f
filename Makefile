# Two commands matter: `make quickstart` and `make check`. Both install what they need into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LONGEST_FIRST := tests/e2e tests/browser tests/integration tests/export tests/unit
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: quickstart check install install-dev lint test soak clean

quickstart: install
	$(BIN)/marin build reports/quickstart@dev --run

check: install-dev lint test

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11; run: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -c constraints.txt -e '.[dev,export]'
	@touch $@ $(VENV)/.installed

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

test:  # the longest first; what fails once on a busy machine is tried again, and listed
	$(BIN)/python -m compileall -q assets jobs marin_dagster resources tests  # once for all processes
	$(BIN)/python -m pytest $(LONGEST_FIRST) -n 3 --dist loadfile --no-loadscope-reorder -m 'not slow' \
	  --reruns 1 -rR

soak:  # what takes too long for every change, and 60 kills at random points
	$(BIN)/python -m pytest tests -m slow

clean:
	rm -rf $(VENV) .dagster
