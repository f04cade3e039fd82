"""What plan.json says is held against what was measured."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest
from support.results import plan

from scaling.errors import InputError
from scaling.records.facts import check_meshes, of_blocks
from scaling.spec.parallel import Parallel


def test_a_plan_whose_degrees_fit_no_world_size_that_was_measured_is_refused_by_its_file():
    whole = plan()
    check_meshes(whole, "runs/one/plan.json")
    spoilt = dataclasses.replace(whole.spec, parallel=Parallel(name="ddp", replicate=0))
    with pytest.raises(InputError, match=r"runs/one/plan\.json: parallel=ddp: replicate 0 does not fit"):
        check_meshes(dataclasses.replace(whole, spec=spoilt), "runs/one/plan.json")


def test_blocks_of_cases_under_a_plan_without_cases_are_refused():
    """Which precision and batch a case had stands in the plan alone."""
    blocks = pl.DataFrame({"arm": ["training"], "batch": [8], "accumulation": [1], "world_size": [1]})
    with pytest.raises(
        InputError, match=r"plan\.json asks for a scaling run, and the rank files hold a table of cases"
    ):
        of_blocks(plan(), blocks)
    cases = dataclasses.replace(plan(), spec=dataclasses.replace(plan().spec, batches=(8,)))
    assert of_blocks(cases, blocks) == (cases, ())
