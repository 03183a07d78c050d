# Two commands do everything, the set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format docs bench torture clean

help:
	@echo "make demo       a tour of the library, with a report to look at (a few minutes)"
	@echo "make test       all tests but the slow ones"
	@echo "make test-slow  all tests, the slow ones too, and new examples for those that make them up"
	@echo "make check      format, lint, types, layers, docs"
	@echo "make format     format the code"
	@echo "make docs       build the documentation into site/"
	@echo "make bench      measure against plain PyTorch into benchmarks/results/"
	@echo "make torture    try to break it for ten minutes: kills, damaged files, full disks, odd data"
	@echo "make clean      remove the virtual environment and what was built"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "outsize needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..."; exit 1; }
	@echo "setting up $(VENV) (once; a few minutes where packages must be downloaded)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/outsize demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

test-slow: $(READY)
	OUTSIZE_EXPLORE=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m ''

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/outsize bench dlrm --out benchmarks/results

torture: $(READY)
	$(BIN)/python -m benchmarks.torture --out benchmarks/results

clean:
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
