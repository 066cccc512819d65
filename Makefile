# Every target sets up its environment by itself, and again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := .venv-demo
LOWEST := .venv-lowest
SERVERS := $(VENV)/servers/.ready

PYTEST := $(BIN)/pytest -n auto --dist loadgroup
# Tests start hundreds of processes: each would compile its modules again where the machine says to keep none.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo check quick-tests test test-lowest test-long test-soak lint format proto bench bench-list fuzz clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO)/.ready ## Watch Strata work (ARGS=--keep leaves it running)
	@$(DEMO)/bin/strata demo $(ARGS)

check: $(READY) ## Check style and types, and run the quick unit tests: what to do before each commit
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint quick-tests

quick-tests: $(READY)
	@STRATA_TEST_PROFILE=quick $(BIN)/pytest -n 3 -q -m "not (slow or long or soak)" tests/unit

test: $(READY) $(SERVERS) ## Run the tests (ARGS="-k barrier" passes options to pytest)
	@$(PYTEST) $(ARGS)

# The most telling first: whole clusters from seeds, saves killed at every point, and then each rule broken on purpose.
TELLING := tests/simulation tests/mutation
FOLDERS := $(patsubst %/,%,$(wildcard tests/*/))
test-long: $(READY) $(SERVERS) ## Run the tests that take minutes
	@STRATA_TEST_PROFILE=long $(PYTEST) -m long $(or $(ARGS),$(TELLING) $(filter-out $(TELLING) tests/__pycache__,$(FOLDERS)))

test-soak: $(READY) $(SERVERS) ## Run the tests that take hours
	@STRATA_TEST_PROFILE=long $(PYTEST) -m soak $(ARGS)

test-lowest: $(LOWEST)/.ready $(SERVERS) ## Run the tests with the lowest versions that pyproject.toml allows
	@$(LOWEST)/bin/pytest -n 2 --dist loadgroup -W default::DeprecationWarning $(ARGS)

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

bench-list: $(READY) ## Say what each benchmark takes and needs
	@$(BIN)/python -m benchmarks --list

fuzz: $(READY) ## Look for bytes that do harm (SECONDS=3600)
	@mkdir -p build/fuzz/corpus && $(BIN)/python -m zipfile -e tests/fuzz/corpus.zip build/fuzz/corpus
	@$(BIN)/python -m tests.fuzz.connection -max_total_time=$(or $(SECONDS),3600) -max_len=2048 \
		-artifact_prefix=build/fuzz/ build/fuzz/corpus

clean: ## Remove everything the other targets made
	@rm -rf $(VENV) $(DEMO) $(LOWEST) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Makes the environment that a target lies in. CONTENTS says what is installed, the first time.
define ENVIRONMENT
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "Strata needs Python 3.11 or newer, and '$(PYTHON)' is not that. Name one: make PYTHON=python3.12" >&2; exit 1; }
@test -f $@ || echo "Setting up $(@D): $(CONTENTS)"
@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
endef
INSTALL = $(@D)/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

$(READY): CONTENTS := all that Strata is tested with, torch, JAX, Ray and transformers too. 3.2 GB, and two minutes or more the first time
$(READY): pyproject.toml constraints.txt
	$(ENVIRONMENT)
	@$(INSTALL) pip
	@$(INSTALL) $(TORCH) torch
	@$(INSTALL) --editable '.[coordinator,data,huggingface,ray,torch]' --group dev
	@touch $@

# Modules are compiled as they are imported: the demo needs few of those that it brings.
$(DEMO)/.ready: CONTENTS := what the demo needs, numpy, pyarrow and gRPC. 320 MB, and less than half a minute
$(DEMO)/.ready: pyproject.toml constraints.txt
	$(ENVIRONMENT)
	@$(INSTALL) --no-compile --editable '.[coordinator,data]'
	@touch $@

# torch is that of constraints.txt: its older builds are no package of the index that uv would find without CUDA.
LOWEST_OF := --extra coordinator --extra data --extra huggingface --extra lightning --extra ray --group frameworks --group test
$(LOWEST)/.ready: CONTENTS := the lowest versions that pyproject.toml allows. 3 GB, and minutes the first time
$(LOWEST)/.ready: pyproject.toml constraints.txt
	$(ENVIRONMENT)
	@$(INSTALL) uv
	@$(INSTALL) $(TORCH) torch
	@echo "torch; python_version < '3'" > $(@D)/without-torch.txt
	@$(@D)/bin/uv pip compile -q --python $(@D)/bin/python --resolution lowest-direct $(LOWEST_OF) \
		--override $(@D)/without-torch.txt -o $(@D)/lowest.txt pyproject.toml
	@$(@D)/bin/uv pip install -q --python $(@D)/bin/python -r $(@D)/lowest.txt
	@$(@D)/bin/uv pip install -q --python $(@D)/bin/python --no-deps --editable .
	@touch $@

# Test servers that come as npm packages. Without npm their tests skip, except in CI, where they fail.
$(SERVERS): tests/servers/package.json tests/servers/package-lock.json
	@mkdir -p $(@D) && cp $^ $(@D)
	@if command -v npm >/dev/null; then npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $(@D); \
	else echo "npm is missing: the tests of Azure storage will skip" >&2; fi
	@touch $@
