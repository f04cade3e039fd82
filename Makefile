# `make demo` and `make test` need python3 and make; everything else they set up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo slurm-demo test test-slow test-all coverage lint bench clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## one real training over a slow and a fast emulated interconnect, compared
	$(BIN)/scaling run -m experiment=demo topology=emulated_pcie,emulated_nvlink

slurm-demo: $(READY)  ## two partitions of a Slurm cluster on this machine (root, slurm-wlm, munge), compared by one command
	@$(BIN)/python tests/slurm/demo.py

# Three processes keep two cores busy: what starts ranks waits a good part of its time. What measures runs after that,
# one test after the other.
# Files in their own order: xdist's begins with those of many tests, and files of one long test would end it.
TOGETHER := $(BIN)/python -m pytest -n 3
BY_FILE := --dist loadscope --no-loadscope-reorder
ALONE := $(BIN)/python -m pytest
PART ?= 1/1

test: lint  ## ruff, mypy and every test but the slow ones: ten minutes
	$(TOGETHER) $(BY_FILE) -m 'not slow and not alone'
	$(ALONE) -m 'not slow and alone'

# What fails beside others, three at a time on two cores, is run once more by itself, and that counts. (Without --part,
# which counts tests: of the few that failed it would take a part again.)
test-slow: $(READY)  ## the slow ones: every fault, every kind of run (PART=2/4: a quarter of them)
	$(TOGETHER) -m 'slow and not alone' --part $(PART) || \
		{ [ $$? -eq 1 ] && $(ALONE) -m 'slow and not alone' --last-failed; }
	$(ALONE) -m 'slow and alone' --part $(PART)

test-all: test test-slow  ## both

# What coverage's own work costs disturbs tests that measure, so their verdict counts in `make test` alone.
coverage: $(READY)  ## which lines of scaling/ the tests of `make test` run, in all of their processes (90 % at least)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n 3 $(BY_FILE) -m 'not slow and not alone'
	-$(BIN)/coverage run -m pytest -q -m 'not slow and alone'
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## every benchmark not measured yet, one after the other, onto the pages of docs/ (two hours and a half)
	@$(BIN)/python benchmarks/pages.py

clean:  ## remove what was built
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
