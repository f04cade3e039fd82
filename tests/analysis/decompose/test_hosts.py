"""Which host is slower than the others, and in what: told from simulated clusters whose slow host is known."""

from dataclasses import replace

import polars as pl
import pytest

from scaling.analysis.decompose.hosts import hosts

MS = 1e6
EXTRA_NS = 8 * MS  # of a step of about 40 ms


@pytest.fixture
def spread(cluster):
    """spread(changes): four hosts of one rank each, ranks round the hosts."""

    def made(**changes):
        usual = {"world_sizes": (1, 2, 4), "hosts": 4, "placement": "spread", "rounds": 6}
        return cluster.Truth(**usual | changes)

    return made


def slow(run):
    return {host.host: host.slow_in for host in run.analysis.hosts if host.slow_in}


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 5))])
def test_of_equal_hosts_none_stands_out(measure, spread, seed):
    run = measure(spread(seed=seed))
    assert [(host.host, host.hostname, host.ranks) for host in run.analysis.hosts] == [
        (h, f"sim-{h}", (h,)) for h in range(4)
    ]
    assert slow(run) == {}


@pytest.mark.parametrize("host", [0, 2])
def test_a_host_that_computes_slower_is_named_with_its_own_step(measure, spread, cluster, host):
    run = measure(spread(stragglers=(cluster.Straggler(rank=host, extra_ns=EXTRA_NS, alone=True),)))
    assert slow(run) == {host: ("step",)}
    found, usual = run.analysis.hosts[host], run.analysis.hosts[1]
    assert found.step_ms.value - usual.step_ms.value == pytest.approx(EXTRA_NS / MS, rel=0.05)
    assert found.step_ratio.value == pytest.approx(found.step_ms.value / usual.step_ms.value, rel=0.01)


@pytest.mark.parametrize("host", [0, 3])
def test_a_host_whose_link_is_slower_is_named_and_its_partners_are_not(measure, spread, host):
    run = measure(spread(slow_links=((host, 2.0),)))
    assert slow(run) == {host: ("link",)}
    assert run.analysis.hosts[host].link_ratio.value == pytest.approx(0.5, rel=0.03)
    gbit_s = [h.link_gbit_s.value for h in run.analysis.hosts if h.host != host]
    assert gbit_s == pytest.approx([8 / 2.0] * 3, rel=0.05)  # 2 ns a byte


def test_where_the_largest_world_size_was_not_measured_no_host_is_told(measure, spread):
    """Out of memory there, say; the rest is analysed all the same."""
    run = measure(spread())
    smaller = {
        name: getattr(run.tables, name).filter(pl.col("world_size") < 4)
        for name in ("blocks", "steps", "buckets", "fabric", "parameters")
    }
    analysis = run.analyze(replace(run.tables, **smaller))
    assert analysis.hosts == ()
    assert analysis.points[1].step_ms is not None


def test_two_hosts_can_each_be_slow_in_their_own_way(measure, spread, cluster):
    extra = cluster.Straggler(rank=1, extra_ns=EXTRA_NS, alone=True)
    assert slow(measure(spread(stragglers=(extra,), slow_links=((2, 2.0),)))) == {1: ("step",), 2: ("link",)}


@pytest.mark.parametrize(
    ("hosts", "ranks_per_host"),
    [pytest.param(3, 1, marks=pytest.mark.slow), (3, 2), (5, 1), pytest.param(4, 2, marks=pytest.mark.slow)],
)
def test_the_hosts_are_told_apart_however_many_there_are(measure, spread, hosts, ranks_per_host):
    ranks = hosts * ranks_per_host
    truth = spread(hosts=hosts, ranks_per_host=ranks_per_host, world_sizes=(2, ranks), slow_links=((1, 2.0),))
    run = measure(truth)
    assert slow(run) == {1: ("link",)}
    assert [host.ranks for host in run.analysis.hosts] == [
        tuple(range(h, ranks, hosts)) for h in range(hosts)
    ]


def test_two_hosts_share_their_only_link(measure, spread, cluster):
    extra = cluster.Straggler(rank=1, extra_ns=2 * EXTRA_NS, alone=True)
    run = measure(spread(hosts=2, world_sizes=(1, 2), stragglers=(extra,), slow_links=((0, 2.0),)))
    assert slow(run) == {1: ("step",)}
    assert {host.link_gbit_s for host in run.analysis.hosts} == {None}


def test_clocks_that_are_apart_make_no_link_slow(measure, spread):
    run = measure(
        spread(clock_offset_ns=(0, 5 * 10**9, -(10**9), 3 * 10**8), clock_drift_ppm=(0, 20, -20, 5))
    )
    assert slow(run) == {}


def test_too_few_rounds_name_no_host(measure, spread):
    run = measure(spread(rounds=2, slow_links=((1, 2.0),)))
    assert slow(run) == {}
    assert run.analysis.hosts[1].link_ratio.value == pytest.approx(0.5, rel=0.05)


def test_packed_ranks_make_no_map(measure, spread):
    assert measure(spread(placement="packed")).analysis.hosts == ()


def test_a_host_whose_other_partner_left_no_records_is_not_told_from_the_slow_one(measure, spread, cluster):
    extra = cluster.Straggler(rank=3, extra_ns=EXTRA_NS)
    run = measure(spread(hosts=5, world_sizes=(5,), stragglers=(extra,), slow_links=((1, 2.0),)))
    assert slow(run) == {1: ("link",), 3: ("step",)}
    there = pl.col("rank") != 4
    tables = replace(
        run.tables,
        ranks=tuple(file for file in run.tables.ranks if file.rank != 4),
        **{
            name: getattr(run.tables, name).filter(there) for name in ("blocks", "steps", "buckets", "fabric")
        },
    )
    left = run.analyze(tables).hosts
    assert {host.host: host.slow_in for host in left} == {0: ("link",), 1: ("link",), 2: (), 3: ("step",)}


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_point_is_its_first_sub_groups(measure, spread, cluster, mode):
    """The other sub-groups' ranks are slow in everything; at 2 ranks nothing of it is seen."""
    slow_ranks = tuple(cluster.Straggler(rank=r, extra_ns=30 * MS) for r in (2, 3))
    truth = spread(mode=mode, world_sizes=(1, 2, 4), stragglers=slow_ranks, slow_links=((2, 3.0), (3, 3.0)))
    run = measure(truth)
    expected, found = run.expected.points[2], run.point(2)
    assert found.step_ms.value == pytest.approx(expected.step_ns["plain"] / MS, rel=0.02)
    assert found.arms_ms.bare_all.value == pytest.approx(expected.step_ns["bare_all"] / MS, rel=0.02)
    assert found.comm.busbw_gbit_s.value == pytest.approx(expected.busbw_gbit_s, rel=0.03)
    assert found.closure.value == pytest.approx(1.0, rel=0.03)
    assert found.straggler is None
    level = next(level for level in run.analysis.fabric.levels if level.world_size == 2)
    assert level.busbw_gbit_s.value == pytest.approx(8 / truth.beta_ns, rel=0.05)


def test_launches_on_other_nodes_are_each_held_against_their_own_median(measure, spread):
    """The second launch got other nodes and a tenth longer steps, all alike: none of them stands out."""
    run = measure(spread())
    names = ("blocks", "steps", "buckets", "fabric")

    def later(frame):
        times = [name for name in frame.columns if name.endswith("_ns")]
        slowed = (pl.col(times) * 1.1).cast(pl.Int64)
        return frame.with_columns(slowed, launch=pl.lit(1, pl.Int64))

    frames = {n: pl.concat([getattr(run.tables, n), later(getattr(run.tables, n))]) for n in names}
    ranks = tuple(replace(r, launch=1, hostname=f"later-{r.host}") for r in run.tables.ranks)
    both = replace(run.tables, ranks=(*run.tables.ranks, *ranks), **frames)
    found = hosts(both, run.plan, floor=0.01)
    assert len(found) == 8
    assert {host.slow_in for host in found} == {()}
    assert all(host.step_ratio.value == pytest.approx(1, abs=0.02) for host in found)
