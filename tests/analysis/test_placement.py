"""Where ranks run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.analysis.predictions import predictions
from scaling.analysis.sources import read_sources
from scaling.fabric import Link, Topology
from scaling.plan import make_plan
from scaling.spec import WhatIf


def topology(hosts=2, ranks_per_host=2, placement="spread"):
    return Topology(
        name="t",
        kind="slurm",
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        device="cuda",
        backend="nccl",
        link=Link(rate_bit_s=10**9),
        placement=placement,
    )


def test_packed_ranks_fill_a_host_before_the_next():
    packed = topology(hosts=3, ranks_per_host=4, placement="packed")
    assert [packed.host_of(r) for r in range(6)] == [0, 0, 0, 0, 1, 1]
    assert (packed.hosts_of(2), packed.shares(6)) == (1, (4, 2))
    assert packed.started(6) == tuple(range(6))


def test_spread_ranks_go_round_the_hosts():
    spread = topology(hosts=3, ranks_per_host=4)
    assert [spread.host_of(r) for r in range(6)] == [0, 1, 2, 0, 1, 2]
    assert (spread.hosts_of(2), spread.shares(5)) == (2, (2, 2, 1))
    assert spread.started(5) == (0, 3, 1, 4, 2)


@given(st.integers(1, 6), st.integers(1, 8), st.sampled_from(["packed", "spread"]), st.data())
def test_every_rank_has_a_place_of_its_own(hosts, ranks_per_host, placement, data):
    where = topology(hosts, ranks_per_host, placement)
    n = data.draw(st.integers(1, where.capacity))
    places = [(where.host_of(r), where.local_of(r)) for r in where.started(n)]
    assert len(set(places)) == n
    assert places == sorted(places)  # as torchrun numbers them
    shares = where.shares(n)
    assert sum(shares) == n
    assert max(shares) <= ranks_per_host
    assert [sum(host == k for host, _ in places) for k in range(len(shares))] == list(shares)


def test_what_a_link_promises_is_unknown_where_spread_ranks_share_it():
    spread, packed = topology(), topology(placement="packed")
    assert packed.nominal_bit_s(2) is None  # within one host
    assert packed.nominal_bit_s(4) == spread.nominal_bit_s(2) == packed.link.nominal_bit_s
    assert spread.nominal_bit_s(4) is None
    assert spread.nominal_bit_s(2, at_work=4) is None  # two rings


def test_a_plan_counts_the_hosts_that_are_touched(cluster):
    spec = cluster.spec_of(cluster.Truth(world_sizes=(1, 2, 4), hosts=2, ranks_per_host=2))
    spread = replace(spec, topology=replace(spec.topology, placement="spread"))
    hosts = [
        [t.hosts for t in make_plan(s, run_id="run", created="", version="").trials] for s in (spec, spread)
    ]
    assert hosts == [[1, 1, 2], [1, 2, 2]]


@pytest.mark.parametrize(("world_size", "says"), [(4, False), (6, True)])
def test_nothing_is_predicted_of_spread_ranks_that_share_links_unmeasured(measure, cluster, world_size, says):
    run = measure(cluster.Truth(world_sizes=(2, 4), hosts=2, ranks_per_host=4, rounds=4))
    where = replace(run.plan.spec.topology, placement="spread")
    plan = replace(run.plan, spec=replace(run.plan.spec, topology=where))
    asked = WhatIf(
        changes=(),
        world_sizes=(world_size,),
        topology=where,
        elsewhere=False,
        bucket_cap_mb=1.0,
        accumulation=None,
        batch_per_rank=32,
        global_batch=32,
        compute_scale=1.0,
        compression=1.0,
        without_straggler=False,
    )
    found = predictions(read_sources(run.tables, plan), plan, run.analysis, asked)
    assert (found.points[0].cannot is not None) == says
    if says:
        assert "topology.placement=spread" in found.points[0].cannot
