# `make` alone prints the targets. `make up` and `make test` do the whole set-up themselves (scripts/setup.sh).

.DEFAULT_GOAL := help
.PHONY: help install up test lint format chaos fuzz bench profile clean lock

BIN := .venv/bin
ARGS ?=

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  ARGS=... is handed on: make up ARGS='--data /srv/roskva', make test ARGS='-k matcher -x', make bench ARGS=latency"

install: ## set everything up: Java, Python environment, packages; seconds when it is already done
	@scripts/setup.sh test

up: ## start the service on this machine and print the address of the demo page; Ctrl-C stops it
	@scripts/setup.sh up
	@$(BIN)/roskva up $(ARGS)

test: lint ## check style and types, then run all tests
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 3 $(ARGS)

lint: ## check format, style and types
	@scripts/setup.sh test
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: ## bring the code into the house format
	@scripts/setup.sh test
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

chaos: ## ten minutes of real faults under load; MINUTES=60 for an hour
	@scripts/setup.sh test
	@ROSKVA_TEST_CHAOS=$(or $(MINUTES),10) $(BIN)/python -m pytest tests/chaos -s $(ARGS)

fuzz: ## ten minutes of broken input for every parser; MINUTES=60 for an hour, ARGS='--seed 7 tokens' for one of them again
	@scripts/setup.sh test
	@PYTHONPATH=src $(BIN)/python -m fuzzing --minutes $(or $(MINUTES),10) $(ARGS)

bench: ## measure; results and plots go to bench/results (make bench ARGS=latency for one)
	@scripts/setup.sh test
	@$(BIN)/python -m bench $(if $(ARGS),$(ARGS),all)

profile: ## where the service spends its time: flame graphs, top ten and Spark's phases go to ./profile (ARGS='--batch 50 --rate 20000')
	@scripts/setup.sh test
	@$(BIN)/python -m bench.profile $(ARGS)

clean: ## remove the Python environment and what tools left behind; the data directory stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist clients/typescript/node_modules clients/typescript/dist tests/capture/postgres18/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## renew requirements.lock with the newest versions that pyproject.toml allows
	@scripts/setup.sh test
	@$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --output-file requirements.lock
	@echo "requirements.lock is renewed; run make test before you commit it."
