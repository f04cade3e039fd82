# `make demo` and `make test` need python3 and make; everything else they set up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests start hundreds of Python processes; each would compile scaling/ anew where the caller has this switched on.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo demo-simulated slurm-demo test test-all coverage lint bench clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): pyproject.toml simulator/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' --editable ./simulator
	@touch $@

demo: $(READY)  ## one real training over a slow and a fast emulated interconnect, compared
	$(BIN)/scaling run -m experiment=demo topology=emulated_pcie,emulated_nvlink

demo-simulated: $(READY)  ## a PCIe and an NVLink node of 8 H100s under a 1.3 B model, both simulated
	$(BIN)/scaling run topology=simulated_h100_pcie,simulated_hgx_h100 model=gpt3_xl model.sequence=1024 precision=bf16 \
		batch_per_rank=4 world_sizes=[8] parallel=fsdp fused_optimizer=true

slurm-demo: $(READY)  ## two partitions of a Slurm cluster on this machine (root, slurm-wlm, munge), compared by one command
	@$(BIN)/python tests/slurm/demo.py

# Three processes keep two cores busy: what starts ranks waits a good part of its time. What measures, or runs a whole
# cluster, runs by itself. xdist would begin with the files of many tests and end with one long test, so files keep
# their own order.
TOGETHER := $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder
ALONE := $(BIN)/python -m pytest
GROUPS := slurm wheel simulated browser measures faults launches more

# A test that fails beside others, three at a time on two cores, is run once more by itself, and that counts.
ONCE_MORE = { [ $$? -eq 1 ] && $(ALONE) --group=$(1) --last-failed; }

test: $(READY)  ## every test but the groups below: three to four minutes
	$(TOGETHER) --group=quick || $(call ONCE_MORE,quick)

$(addprefix test-,faults launches more browser): test-%: $(READY)
	$(TOGETHER) --group=$* || $(call ONCE_MORE,$*)

$(addprefix test-,slurm wheel simulated measures): test-%: $(READY)
	$(ALONE) --group=$*

test-all: test $(addprefix test-,$(GROUPS))  ## every test: the groups are test-slurm -wheel -simulated -browser -measures -faults -launches -more

# What coverage's own work costs disturbs tests that measure, so their verdict counts in `make test` alone.
coverage: $(READY)  ## which lines of scaling/ and simulator/ the tests of `make test` run, in all of their processes (90 % at least)
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest -q -n 4 --dist loadscope --no-loadscope-reorder --group=quick
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## every benchmark not measured yet, one after the other (over three hours)
	@$(BIN)/python benchmarks/keep.py

clean:  ## remove what was built
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
