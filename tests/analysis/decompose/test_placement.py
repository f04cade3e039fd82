"""Where ranks run."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results import emulated

from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.predict.predictions import as_measured, predictions
from scaling.analysis.predict.sources import read_sources
from scaling.settings.plan import make_plan
from scaling.settings.topology import Level, Link


def topology(hosts=2, ranks_per_host=2, placement="spread"):
    device = {"kind": "slurm", "device": "cuda", "backend": "nccl", "link": Link(rate_bit_s=10**9)}
    return emulated(hosts, ranks_per_host, placement=placement, **device)


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
    asked = replace(as_measured(plan), world_sizes=(world_size,), bucket_cap_mb=1.0)
    found = predictions(read_sources(RunRecords(run.tables, plan)), plan, run.analysis, asked)
    assert (found.points[0].cannot is not None) == says
    if says:
        assert "topology.placement=spread" in found.points[0].cannot


def elsewhere(plan, *world_sizes, **topology):
    where = replace(plan.spec.topology, **topology)
    return replace(as_measured(plan), world_sizes=world_sizes, topology=where, elsewhere=True)


def test_another_link_between_hosts_is_none_within_one(measure, cluster):
    """Two ranks a host: what joins those was measured, and the link's rate says nothing of it."""
    run = measure(cluster.Truth(world_sizes=(2, 4), hosts=2, ranks_per_host=2, rounds=4))
    link = replace(run.plan.spec.topology.link, rate_bit_s=1e8)
    asked = elsewhere(run.plan, 2, 4, link=link)
    inside, across = predictions(read_sources(run.records), run.plan, run.analysis, asked).points
    assert inside.step_ms.value == pytest.approx(run.point(2).step_ms.value, rel=0.02)
    assert across.step_ms.value > 2 * run.point(4).step_ms.value


def test_what_joins_one_host_is_not_guessed_from_the_link_to_others(measure, cluster):
    run = measure(cluster.Truth(world_sizes=(1, 4), hosts=4, rounds=4))
    asked = elsewhere(run.plan, 4, 16, ranks_per_host=8)
    inside, across = predictions(read_sources(run.records), run.plan, run.analysis, asked).points
    assert "the link between them is not known" in inside.cannot
    assert across.step_ms is not None


@pytest.mark.slow
def test_nor_is_it_in_the_run_itself_and_its_back_test(measure, cluster):
    """Two ranks a host, of which the run measured no two."""
    run = measure(cluster.Truth(world_sizes=(1, 3, 4), hosts=2, ranks_per_host=2, rounds=4))
    asked = replace(as_measured(run.plan), world_sizes=(1, 2, 3))
    alone, two, three = predictions(read_sources(run.records), run.plan, run.analysis, asked).points
    assert "the link between them is not known" in two.cannot
    assert alone.step_ms is not None
    assert three.step_ms is not None
    within = measure(cluster.Truth(world_sizes=(1, 2, 4), hosts=2, ranks_per_host=2, rounds=4))
    found = predictions(read_sources(within.records), within.plan, within.analysis, as_measured(within.plan))
    assert [test.world_size for test in found.backtest] == [4]  # 2 cannot be told from what is between hosts


def test_ranks_that_are_spread_one_a_host_go_over_the_network_only(measure, cluster):
    run = measure(cluster.Truth(world_sizes=(1, 4), hosts=4, rounds=4))
    nvlink = (Level(name="nvlink", ranks=8, rate_bit_s=3.6e12),)
    steps = []
    for levels in ((), nvlink):
        asked = elsewhere(run.plan, 4, placement="spread", ranks_per_host=8, levels=levels)
        (point,) = predictions(read_sources(run.records), run.plan, run.analysis, asked).points
        steps.append(point.step_ms.value)
    assert steps[0] == pytest.approx(steps[1])


def test_a_link_that_sub_groups_shared_is_not_carried_over(measure, cluster):
    truth = cluster.Truth(world_sizes=(1, 2, 4), hosts=4, ranks_per_host=2, placement="spread", rounds=4)
    run = measure(replace(truth, world_sizes=(1, 2, 4, 8)))
    asked = elsewhere(run.plan, 1, 4, placement="packed")
    alone, four = predictions(read_sources(run.records), run.plan, run.analysis, asked).points
    assert alone.step_ms is not None  # needs no link
    assert "shared their hosts' links" in four.cannot
