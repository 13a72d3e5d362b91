# `make demo` and `make test` are the two commands of the README; both make the environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check lint types imports soak mutants bench clean
.DEFAULT_GOAL := help
help:
	@sed -n 's/^## //p' Makefile

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement requirements-dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[torch,server]"
	@touch $(STAMP)

## make test      the environment, lint, types, import contracts and all tests
test: check
	$(BIN)/python -m pytest -n 2 -q

## make check     lint, types and import contracts only
check: lint types imports

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

clean:
	rm -rf .venv .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
