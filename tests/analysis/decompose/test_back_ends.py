"""A back end that runs collectives one after the other, as NCCL does: each figure is the truth."""

from dataclasses import replace

import pytest
from support.expected import MS

TOLERANCE = 0.03
CLOSE_NS = 20_000


@pytest.fixture(scope="module")
def truth(cluster):
    """Six ranks whose last buckets come faster than the link takes them, with clocks that are off."""
    buckets = tuple(cluster.Bucket(bytes=2**21, at=at) for at in (0.3, 0.6, 0.8, 0.9, 1.0))
    offsets = tuple(2_000 * (r % 5 - 2) for r in range(1024))
    return cluster.Truth(
        world_sizes=(6,),
        channels=1,
        buckets=buckets,
        step_noise=0.0,
        block_noise=0.0,
        link_noise=0.0,
        drift=0.0,
        probe_light_ns=0.0,
        probe_detailed_ns=0.0,
        clock_offset_ns=offsets,
        clock_bound_ns=10_000,
        rounds=5,
        steps=6,
        seed=1,
    )


def late(cluster, truth, rank, ms=15):
    return replace(truth, stragglers=(cluster.Straggler(rank=rank, extra_ns=ms * MS),))


def assert_true(run, n):
    point, expected = run.point(n), run.expected.points[n]
    found = {
        f"bucket {k}": (b.transfer_ms, t)
        for k, (b, t) in enumerate(zip(point.comm.buckets, expected.transfer_ns, strict=True))
    }
    found |= {
        name: (getattr(point.parts_ms, name), expected.parts_all_ns[name])
        for name in ("exposed_transfer", "exposed_skew")
    }
    if expected.late:
        (rank,) = expected.late
        assert point.straggler.rank == rank
        found["cost"] = (point.straggler.cost_ms, expected.cost_ns[rank])
    else:
        assert point.straggler is None
    off = {
        name: (number.value, wanted / MS)
        for name, (number, wanted) in found.items()
        if abs(number.value * MS - wanted) > max(TOLERANCE * wanted, CLOSE_NS)
    }
    assert off == {}
    assert point.closure.value == pytest.approx(1, abs=TOLERANCE)
    assert point.comm.busbw_gbit_s.value == pytest.approx(expected.busbw_gbit_s, rel=TOLERANCE)


@pytest.mark.parametrize("rank", [None, 2])
def test_buckets_waits_and_the_late_rank_are_the_truth(cluster, truth, measure, rank):
    assert_true(measure(truth if rank is None else late(cluster, truth, rank)), 6)


def test_read_as_gloos_the_buckets_that_queue_are_wrong(truth, measure):
    """What merging makes of the same records where it takes collectives for concurrent ones."""
    run = measure(truth)
    topology = replace(run.plan.spec.topology, backend="gloo")
    as_gloo = replace(run, plan=replace(run.plan, spec=replace(run.plan.spec, topology=topology)))
    buckets = as_gloo.analyze(run.tables).points[0].comm.buckets
    off = [
        b.transfer_ms.value * MS / t - 1
        for b, t in zip(buckets, run.expected.points[6].transfer_ns, strict=True)
    ]
    assert max(map(abs, off)) > 0.2


def test_two_communicators_that_share_the_wire_each_have_what_they_take_alone(cluster, truth, measure):
    shared = replace(late(cluster, truth, 3), communicators=(0, 1, 0, 1, 0))
    run = measure(shared)
    assert_true(run, 6)
    assert max(b.shared_ms.value for b in run.point(6).comm.buckets) > 1
    assert max(b.shared_ms.value for b in measure(truth).point(6).comm.buckets) == 0


@pytest.mark.slow
@pytest.mark.parametrize("n", [64, 256, 1024])
def test_so_they_are_with_many_ranks(cluster, truth, measure, n):
    many = replace(
        late(cluster, truth, n // 3),
        world_sizes=(n,),
        hosts=n // 8,
        ranks_per_host=8,
        alpha_ns=2e3,
        beta_ns=0.5,
        rounds=3,
        steps=4,
    )
    assert_true(measure(replace(many, communicators=(0, 1, 0, 1, 0))), n)
