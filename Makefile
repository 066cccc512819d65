# Every target sets up .venv by itself, and again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVERS := $(VENV)/servers/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint format proto bench fuzz clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## Watch Strata work (ARGS=--keep leaves it running)
	@$(BIN)/strata demo $(ARGS)

test: $(READY) $(SERVERS) ## Run the tests (ARGS="-k barrier" passes options to pytest)
	@$(BIN)/pytest -n 2 --dist loadgroup $(ARGS)

test-long: $(READY) $(SERVERS) ## Run the tests that take minutes
	@STRATA_TEST_PROFILE=long $(BIN)/pytest -n 2 --dist loadgroup -m long $(ARGS)

lint: $(READY) ## Check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache

format: $(READY) ## Put the code in shape
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

proto: $(READY) ## Make the messages of the wire contract anew from proto/
	@$(BIN)/python -m grpc_tools.protoc -I proto --descriptor_set_out=src/strata/v1/coordinator.binpb --pyi_out=src \
		strata/v1/coordinator.proto

bench: $(READY) ## Run the benchmarks (BENCH=name for one of them)
	@$(BIN)/python -m benchmarks $(BENCH)

fuzz: $(READY) ## Look for bytes that do harm (SECONDS=3600)
	@mkdir -p build/fuzz/corpus && $(BIN)/python -m zipfile -e tests/fuzz/corpus.zip build/fuzz/corpus
	@$(BIN)/python -m tests.fuzz.connection -max_total_time=$(or $(SECONDS),3600) -max_len=2048 \
		-artifact_prefix=build/fuzz/ build/fuzz/corpus

clean: ## Remove everything the other targets made
	@rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Strata needs Python 3.11 or newer, and '$(PYTHON)' is not that. Name one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || { echo "Setting up $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt torch
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Test servers that come as npm packages. Without npm their tests skip, except in CI, where they fail.
$(SERVERS): tests/servers/package.json tests/servers/package-lock.json
	@mkdir -p $(@D) && cp $^ $(@D)
	@if command -v npm >/dev/null; then npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $(@D); \
	else echo "npm is missing: the tests of Azure storage will skip" >&2; fi
	@touch $@
