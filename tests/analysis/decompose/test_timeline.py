"""A typical step as spans."""

from dataclasses import replace
from itertools import pairwise

import pytest

from scaling.analysis.decompose.timeline import RANKS_MAX, timelines
from scaling.analysis.decompose.trials import RunRecords

PHASES = ("input", "forward", "backward", "optimizer", "host")
SLACK_MS = 1e-3  # spans are rounded to 0.1 us


@pytest.fixture(scope="module")
def run(measure, cluster):
    return measure(cluster.Truth(world_sizes=(1, 2), rounds=3))


@pytest.fixture(scope="module")
def drawn(run):
    return timelines(run.records)


def spans(timeline, rank, lane):
    return sorted(
        (s for s in timeline.spans if (s.rank, s.lane) == (rank, lane)), key=lambda s: (s.begin_ms, s.end_ms)
    )


def test_one_rank_alone_has_no_link_to_draw(drawn):
    assert [t.world_size for t in drawn] == [2]


def assert_whole(timeline, rank):
    """Phases in order, no gap and no overlap."""
    phases = spans(timeline, rank, "compute")
    assert [s.name for s in phases if not s.name.startswith("exposed")] == list(PHASES)
    for before, after in pairwise(phases):
        assert after.begin_ms == pytest.approx(before.end_ms, abs=SLACK_MS)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_ranks_phases_follow_each_other_without_gaps(drawn, rank):
    assert_whole(drawn[0], rank)


def test_the_step_drawn_is_a_typical_one(run, drawn):
    phases = spans(drawn[0], 0, "compute")
    length = phases[-1].end_ms - phases[0].begin_ms
    assert length == pytest.approx(run.point(2).arms_ms.probe.value, rel=0.03)


def test_buckets_are_drawn_with_their_bytes_under_the_same_clock(run, drawn):
    buckets = spans(drawn[0], 1, "link")
    assert [s.name for s in buckets] == [f"bucket {k}" for k in range(len(buckets))]
    assert sum(s.bytes for s in buckets) == run.point(2).comm.bytes_per_step
    waited = [s for s in spans(drawn[0], 1, "compute") if s.name.startswith("exposed")]
    assert waited[-1].end_ms == pytest.approx(buckets[-1].end_ms, abs=SLACK_MS)


def test_waiting_for_a_late_rank_is_drawn_as_skew_on_its_peers(measure, cluster):
    late = cluster.Straggler(rank=1, extra_ns=30e6)
    found = measure(cluster.Truth(world_sizes=(2,), rounds=3, stragglers=(late,)))
    (timeline,) = timelines(found.records)

    def skew(rank):
        return sum(
            s.end_ms - s.begin_ms for s in spans(timeline, rank, "compute") if s.name == "exposed_skew"
        )

    assert skew(0) > 10
    assert skew(1) < 1
    for rank in (0, 1):  # the link is idle between buckets: waits alternate
        assert_whole(timeline, rank)


def test_up_to_so_many_ranks_all_are_drawn(measure, cluster):
    found = measure(cluster.Truth(world_sizes=(RANKS_MAX,), hosts=RANKS_MAX, rounds=1, steps=2))
    (timeline,) = timelines(found.records)
    assert {s.rank for s in timeline.spans} == set(range(RANKS_MAX))
    assert timeline.drawn is None


def test_of_more_ranks_the_late_one_is_drawn_first(measure, cluster):
    """It is far behind the first ranks, and the step is as long on all of them: what it does not wait tells it."""
    late = cluster.Straggler(rank=29, extra_ns=8e6, phase="input")
    found = measure(
        cluster.Truth(
            world_sizes=(32,),
            hosts=4,
            ranks_per_host=8,
            rounds=2,
            steps=4,
            step_noise=0.0,
            stragglers=(late,),
        )
    )
    (timeline,) = timelines(found.records)
    assert timeline.drawn.slowest[0] == 29
    assert {host for host, _ in timeline.drawn.of_hosts} <= {0, 1, 2}
    assert [*dict.fromkeys(s.rank for s in timeline.spans)] == [*timeline.drawn.ranks]
    assert len(timeline.drawn.ranks) == RANKS_MAX


def test_a_run_without_detailed_blocks_draws_nothing(run):
    empty = run.tables.buckets.clear()
    tables = replace(run.tables, buckets=empty, ranks=(), gaps=(), dropped_samples=0)
    assert timelines(RunRecords(tables, run.plan)) == ()
