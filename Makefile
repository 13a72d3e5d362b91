# The README's two commands are `make demo` and `make test`; both make the environment first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

MONITORED_PYTHON ?= python3.13

.PHONY: help demo test system nightly check lint types imports audit soak dist mutants sabotage sentences docs bench peers monitored clean
.DEFAULT_GOAL := help

help:
	@grep -hE '^## ' Makefile | cut -c4-

# pip itself is raised first: dependency groups need pip >= 25.1.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (the first time takes a minute or two)"
	@$(PIP) install --upgrade "pip>=25.1"
	@$(PIP) install --constraint constraints.txt --group dev --editable ".[torch,server]"
	@touch $(STAMP)

## make demo      two cold jobs at once, a warm one, an edited file, a changed config: what was done again
demo: $(STAMP)
	@$(BIN)/python examples/demo.py

## make test      the environment, lint, types, import contracts, and tests with an eighth of the nightly cases
# Hundreds of tests start processes of their own; bytecode spares each of them the compiler. Many tests wait
# for a process or for a deadline: four workers keep two cores busy.
test: check
	@$(BIN)/python -m compileall -q client server tests/support
	$(BIN)/python -m pytest -n 4 --dist worksteal -q -m "not soak"

## make system    deploy's dashboard and units, its image and two boxes in systemd-nspawn and podman (root; minutes)
system: $(STAMP)
	tests/system/dashboard.sh
	tests/system/units.sh
	tests/system/image.sh
	tests/system/fleet.sh

## make nightly   all tests with all nightly cases, coverage of the parts that promises rest on, then `make soak`
nightly: check audit
	$(PIP) install --requirement tests/requirements-nightly.txt
	$(PIP) install --constraint constraints.txt --requirement examples/ecosystem/requirements.txt
	@$(BIN)/python -m compileall -q client server tests/support
	NIGHTLY=all $(BIN)/python -m pytest -n 4 --dist worksteal -q -m "not soak" --cov --cov-report=
	@for part in "*/store/*" "*/leases.py" "*/fill/share.py" "*/commit*.py" "*/keys/*"; do \
	    echo "$$part: $$($(BIN)/coverage report --format total --include "$$part") % of lines and branches"; done
	tests/system/openapi.sh 60
	tests/system/dashboard.sh || [ $$? = 2 ]
	$(MAKE) dist soak

## make audit     known vulnerabilities in the pinned versions
audit: $(STAMP)
	$(PIP) install pip-audit
	$(BIN)/pip-audit --progress-spinner off --no-deps --disable-pip --requirement constraints.txt

## make check     lint, types and import contracts only
check: lint types imports

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

## make soak      tests that take minutes each, and properties with new random examples
soak: $(STAMP)
	$(BIN)/python -m pytest -q --timeout 3600 -m soak
	PREPCACHE_SOAK=1 $(BIN)/python -m pytest -q --timeout 3600 tests/property

## make dist      wheel and sdist in dist/; the README's example runs from the wheel, and so do the commands as a tool
dist: $(STAMP)
	rm -rf dist .venv-dist
	$(PIP) install --constraint constraints.txt hatchling
	$(BIN)/python -m hatchling build --directory dist
	$(PYTHON) -m venv .venv-dist
	$(PIP) --python .venv-dist/bin/python install --constraint constraints.txt "$$(ls dist/*.whl)[torch,server]"
	PYTHONPATH=tests $(BIN)/python -m support.readme_example "$$PWD/.venv-dist/bin/python"
	$(PIP) install uv pipx
	UV_TOOL_DIR=build/tools UV_TOOL_BIN_DIR=build/tools/bin $(BIN)/uv tool install --quiet --force \
	    "prepcache[server] @ file://$$(ls $$PWD/dist/*.whl)"
	build/tools/bin/prepcache --help > /dev/null && build/tools/bin/prepcached --help > /dev/null
	PIPX_HOME=build/pipx PIPX_BIN_DIR=build/pipx/bin $(BIN)/pipx install --quiet --force "$$(ls dist/*.whl)[server]"
	build/pipx/bin/prepcache --version && build/pipx/bin/prepcached --version

## make mutants   mutations of the pure modules by cosmic-ray, and those that no test sees (hours)
# It edits the sources in place, and puts each back: a tree with changes of one's own is refused.
mutants: $(STAMP)
	git diff --quiet
	$(PIP) install --constraint constraints.txt cosmic-ray
	mkdir -p build
	. $(BIN)/activate && cosmic-ray init --force tests/sabotage/mutants.toml build/mutants.sqlite
	. $(BIN)/activate && cosmic-ray exec tests/sabotage/mutants.toml build/mutants.sqlite
	$(BIN)/cr-report --surviving-only build/mutants.sqlite
	$(BIN)/cr-rate build/mutants.sqlite

## make sabotage  every named sabotage of the product is caught by the test that is named for it
sabotage: $(STAMP)
	NIGHTLY=all $(BIN)/python -m pytest -n 2 -q tests/sabotage

## make sentences every text that a person may read, file by file, to go through in one sitting
sentences: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m support.sentences

## make docs      the documentation as a site in build/site; open index.html
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

## make monitored the tests of observation that need no torch, under a Python that has sys.monitoring
monitored:
	$(MONITORED_PYTHON) -m venv .venv-monitored
	.venv-monitored/bin/python -m pip install --quiet --constraint constraints.txt numpy blake3 pytest pytest-timeout \
		pytest-xdist hypothesis safetensors tokenizers coverage pydantic msgspec rich
	.venv-monitored/bin/python -m pip install --quiet --no-deps --editable .
	.venv-monitored/bin/python -m pytest -q -p no:cacheprovider tests/unit/test_observe*.py tests/unit/test_process_unchanged.py

## make bench     the benchmark suite, as ratios to the speed of copying memory
bench: $(STAMP)
	$(PIP) install --constraint constraints.txt --requirement benchmarks/requirements.txt
	$(BIN)/python -m benchmarks

## make peers     what the benchmark compares with, in an environment of its own (.venv-peers)
PEERS_PIP := .venv-peers/bin/python -m pip --disable-pip-version-check --quiet
peers:
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	$(PEERS_PIP) install --constraint constraints.txt torch==2.13.0 numpy pillow
	$(PEERS_PIP) install --constraint constraints.txt --requirement benchmarks/requirements-peers.txt
	$(PEERS_PIP) install --constraint constraints.txt --no-deps --requirement benchmarks/requirements-peers-bare.txt
	$(PEERS_PIP) install --requirement benchmarks/requirements-key-peers.txt

clean:
	rm -rf .venv .venv-peers .venv-dist .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
