"""The degrees of plan.json are held against the communicators that the rank files name."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest
from support.results import plan

from scaling.errors import InputError
from scaling.records.check import as_communicated, check_meshes, plan_of_blocks
from scaling.records.rank_file import RankFile
from scaling.settings.parallel import Fsdp, Parallel

SIZES = (1, 2, 4, 8)


def planned(parallel):
    base = plan()
    return dataclasses.replace(base, spec=dataclasses.replace(base.spec, parallel=parallel))


def rank_0(parallel, sizes=SIZES, fsdp=None):
    """Rank 0's file as a launch with these degrees writes its head (worker.session)."""
    groups = {n: tuple(range(n)) for n in sizes}
    groups |= {-1: (0, 1)}  # a pairing of two hosts
    for n in sizes:
        mesh = parallel.mesh(n)
        keys = mesh.keys()
        groups |= {keys[axis]: next(g for g in of if 0 in g) for axis, of in mesh.axes().items()}
        groups |= mesh.made_by_torch(0, fsdp or Fsdp())
    return RankFile(
        launch=0,
        rank=0,
        world=max(sizes),
        host=0,
        hostname="",
        groups=groups,
        warmup={},
        cores=0,
        numa_nodes=0,
        buckets=(),
        fed_ns={},
        clock_bound_ns=None,
        clock_corrected=False,
        cut_off=False,
        ended=True,
    )


STRATEGIES = [
    Parallel.preset("ddp", 2),
    Parallel.preset("fsdp", 2),
    Parallel.preset("hsdp", 2),
    Parallel.preset("tp", 2),
    Parallel.preset("fsdp_tp", 2),
    Parallel.preset("hsdp_tp", 4),
]


@pytest.mark.parametrize("parallel", STRATEGIES, ids=lambda one: one.name)
@pytest.mark.parametrize("sizes", [SIZES, (1, 3, 4), (6, 8)])
def test_a_plan_with_the_degrees_of_its_communicators_is_kept(parallel, sizes):
    if parallel.shard == 2 or parallel.tensor == 2:
        sizes = tuple(n for n in sizes if n % 4 == 0)
    as_planned = planned(parallel)
    assert as_communicated(as_planned, [rank_0(parallel, sizes)]) == (as_planned, ())
    apart = Fsdp(reshard=2, separate_reduce_scatter_group=True)
    assert as_communicated(as_planned, [rank_0(parallel, sizes, apart)]) == (as_planned, ())


@pytest.mark.parametrize(
    ("was", "changed"),
    [
        ("fsdp_tp", {"tensor": 4}),
        ("fsdp_tp", {"tensor": 1}),
        ("fsdp", {"replicate": 2}),
        ("hsdp_tp", {"tensor": 4}),
        ("hsdp_tp", {"shard": 1}),
        ("hsdp", {"shard": 4}),
        ("hsdp", {"shard": 1}),
        ("hsdp", {"shard": 3}),  # fits no world size
        ("tp", {"tensor": 2, "replicate": -1}),
    ],
)
def test_the_degrees_of_the_communicators_win_and_the_difference_is_said(was, changed):
    """A tensor degree of 4 in place of 2 halves the samples/s."""
    (true,) = (one for one in STRATEGIES if one.name == was)
    found, said = as_communicated(planned(dataclasses.replace(true, **changed)), [rank_0(true)])
    assert [found.spec.parallel.mesh(n) for n in SIZES] == [true.mesh(n) for n in SIZES]
    assert len(said) == 1
    assert said[0].startswith(f"plan.json says parallel={was} with replicate ")
    assert "the rank files have other communicators" in said[0]
    assert said[0].endswith("which is used")


def test_communicators_of_no_degrees_leave_the_plan_and_are_said():
    fsdp = planned(Parallel.preset("fsdp", 2))
    odd = rank_0(Parallel.preset("hsdp_tp", 4))
    found, said = as_communicated(
        fsdp, [dataclasses.replace(odd, groups={**odd.groups, -(2**19) - 4: (0, 1)})]
    )
    assert found == fsdp
    assert said[0].endswith("samples/s, efficiency and the loss by cause may be wrong")


def test_a_world_size_without_its_ranks_is_not_believed():
    """One changed number of a head would otherwise ask for every mesh of a billion ranks."""
    file = rank_0(Parallel.preset("fsdp_tp", 2))
    changed = dataclasses.replace(file, groups={**file.groups, 10**9: (0,)})
    other = planned(dataclasses.replace(Parallel.preset("fsdp_tp", 2), tensor=4))
    assert as_communicated(other, [changed]) == as_communicated(other, [file])


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
        plan_of_blocks(plan(), blocks)
    cases = dataclasses.replace(plan(), spec=dataclasses.replace(plan().spec, batches=(8,)))
    assert plan_of_blocks(cases, blocks) == (cases, ())
