# Two commands matter: `make demo` and `make test`. Both install what they need into .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Many small processes on few cores: OpenMP teams would only wait for each other.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types floors pytest fix bench clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(STAMP) ## Install everything into .venv (once; again when a pyproject changes)

$(STAMP): pyproject.toml workers/pyproject.toml constraints/cpu.txt tools/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup.sh
	@touch $@

demo: setup ## Run the main job on this machine: a small model learns, nothing is rented
	@$(BIN)/verlops up --yes --updates $${UPDATES:-8} --new-run --config configs/local.yaml \
		--chaos $${CHAOS:-notice@15s,kill@30s} $(DEMO_ARGS)

test: lint types floors pytest ## Everything that CI runs

check: test ## The same as `make test`

lint: setup
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: setup
	@$(BIN)/mypy

floors: setup
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

pytest: setup
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

fix: setup ## Format and mend what ruff can mend
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: setup ## Run the short benchmarks; results are printed
	@for b in bench/*_bench.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

clean: ## Remove .venv and all state of runs
	rm -rf $(VENV) .verlops
