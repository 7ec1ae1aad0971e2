# Everything a newcomer needs, one word each. `make demo` and `make test` set the project up first if that is not done yet.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# One torch thread per worker process, so that the workers do not fight over the cores. Where a test asks for two, the one
# that waits sleeps. A worker takes half of the files, then what the other has left: a network is captured by one of them.
TEST_WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all zoo check format bench gpu clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Make .venv and install vdnn with its development tools; instant when nothing changed

$(INSTALLED): pyproject.toml constraints.txt setup.py $(wildcard src/vdnn/codecs/kernels/csrc/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "vdnn needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make setup PYTHON=python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup ## Look into VGG-16 without allocating it, then train ResNet-50 in 60 % of its memory, bit for bit as plain PyTorch
	$(BIN)/vdnn inspect vgg16 --batch 256 --hardware titan-x
	$(BIN)/vdnn train resnet50 --batch 4 --steps 3 --budget 60% --verify

test: setup ## Check every claim in small examples: about 9 minutes on 2 cores
	$(PYTEST) -m "not slow" --durations=20

test-all: test ## Also the larger examples, many more random ones, and the suite of every device on the one for tests
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile=many --durations=20
	$(PYTEST) --device vdev --durations=20

zoo: setup ## Train every architecture of the installed transformers, tiny, against plain PyTorch bit for bit: hours
	PYTHONPATH=src:tests:tests/cpu OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -W ignore -m zoo --jobs $(TEST_WORKERS) --table build/zoo.md $(ZOO)

check: setup ## Formatting, lint, types, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell

format: setup ## Rewrite files the way `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## Run the benchmarks one after the other: hours (benchmarks/README.md)
	@set -e; for script in benchmarks/keep_all.py benchmarks/process_peak.py benchmarks/reductions.py benchmarks/disk_transfers.py benchmarks/offload.py benchmarks/codecs.py benchmarks/gist.py benchmarks/digits.py benchmarks/headline.py benchmarks/superneurons_tables.py benchmarks/recompute.py benchmarks/tensor_cache.py benchmarks/chunks.py benchmarks/predicted_time.py benchmarks/ready.py; do echo "== $$script"; $(BIN)/python $$script; done
	@mkdir -p build && $(BIN)/python benchmarks/pareto.py --save build/pareto.md && echo "The picture is build/pareto.svg"

gpu: setup ## On the accelerator that is here: its tests, then a benchmark whose record can be sent to us
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.accelerator.is_available() and "torch finds no accelerator here")'
	$(BIN)/python -m pytest -m "not slow" --device $$($(BIN)/python -c 'import torch; print(torch.accelerator.current_accelerator().type)')
	$(BIN)/python benchmarks/accelerator.py --save build/accelerator.md && echo "The record is build/accelerator.md"

clean: ## Remove what `make` made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info src/vdnn/codecs/kernels/_native*.so
