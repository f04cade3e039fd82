"""Waiting apart from moving data: instances matched over ranks."""

from dataclasses import replace

import numpy as np
import pytest

from scaling.traces.profiler.columns import Sent, merged
from scaling.traces.profiler.decompose import Collectives
from scaling.traces.profiler.match import RankClock, match, shared_steps, split

LABELS = ("ProfilerStep#1",)


def collectives(*events, collective="all_reduce", group="", seqs=None):
    """(begin, end) pairs of one rank in one step."""
    seqs = seqs or [None] * len(events)
    return Collectives(
        begin=np.array([b for b, _ in events]),
        end=np.array([e for _, e in events]),
        step=np.zeros(len(events), dtype=np.int64),
        sent=tuple(Sent(collective=collective, bytes=1000, group=group, seq=s) for s in seqs),
    )


def matched(ranks, world_size=2, clocks=None, groups=None):
    clocks = clocks or {r: RankClock(origin_ns=0, host="a") for r in ranks}
    return match(ranks, world_size, dict.fromkeys(ranks, LABELS), groups or {}, clocks)


def test_the_last_to_begin_is_late_and_the_others_wait_for_it():
    found = matched({0: collectives((0, 100), (200, 300)), 1: collectives((60, 100), (190, 300))})
    first, second = found.instances
    assert (first.late, first.transfer, first.wait.tolist()) == (1, 40, [60, 0])
    assert (second.late, second.transfer, second.wait.tolist()) == (0, 100, [0, 10])
    assert found.unmatched == ()


def test_a_rank_that_ends_long_after_the_others_is_not_taken_for_an_early_one():
    (found,) = matched({0: collectives((90, 600)), 1: collectives((0, 110))}).instances
    assert (found.late, found.transfer) == (0, 510)


def test_clocks_of_different_hosts_are_set_by_the_ends():
    ranks = {0: collectives((0, 100), (200, 300)), 1: collectives((60, 100), (190, 300))}
    clocks = {0: RankClock(origin_ns=0, host="a"), 1: RankClock(origin_ns=5_000_000, host="b")}
    first, second = matched(ranks, clocks=clocks).instances
    assert (first.late, first.transfer, first.spread) == (1, 40, 0)
    assert (second.late, second.transfer) == (0, 100)


def test_exposed_time_is_split_where_the_last_rank_arrives():
    ranks = {0: collectives((0, 100)), 1: collectives((60, 100))}
    found = matched(ranks)
    exposed = merged(np.array([20]), np.array([100]))  # compute hides the first 20
    moved, waited = split(exposed, ranks[0], found.released[0], np.array([0, 200]))
    assert (moved.tolist(), waited.tolist()) == ([40], [40])


def test_a_missing_rank_leaves_waiting_and_transfer_untold():
    found = matched({0: collectives((0, 100)), 1: collectives((60, 100))}, world_size=3)
    assert found.instances == ()
    assert found.unmatched == (
        "1 collectives: waiting cannot be separated from transfer: rank 2 does not show them",
    )
    assert np.isnan(found.released[0]).all()


@pytest.mark.parametrize(
    "other",
    [collectives((60, 100), (150, 200)), collectives((60, 100), collective="all_gather")],
    ids=["one more", "another"],
)
def test_ranks_that_disagree_are_not_matched(other):
    found = matched({0: collectives((0, 100)), 1: other})
    assert found.instances == ()
    assert "same collectives" in found.unmatched[0]


def test_sequence_numbers_go_before_the_order_of_begins():
    ranks = {0: collectives((0, 10), (20, 30), seqs=[7, 8]), 1: collectives((5, 30), (20, 45), seqs=[8, 7])}
    rows = sorted(i.rows for i in matched(ranks).instances)
    assert rows == [(0, 1), (1, 0)]


def test_a_group_that_is_listed_has_its_own_members():
    ranks = {r: collectives((r, 100), group="dp") for r in (0, 2)}
    (found,) = matched(ranks, world_size=4, groups={0: {"dp": (0, 2)}}).instances
    assert found.ranks == (0, 2)
    assert found.late == 2


def test_groups_of_one_name_are_told_apart_by_their_members():
    """Older versions of torch count the groups that each rank has: those beside each other share a number."""
    ranks = {r: collectives((r, 100), group="1") for r in range(4)}
    groups = {0: {"1": (0, 2)}, 2: {"1": (0, 2)}, 1: {"1": (1, 3)}, 3: {}}
    found = matched(ranks, world_size=4, groups=groups)
    assert {one.ranks for one in found.instances} == {(0, 2), (1, 3)}
    assert found.unmatched == ()


@pytest.mark.parametrize(("inputs_only", "size"), [(True, 2000), (False, 1000)])
def test_the_size_of_an_all_gather_is_what_comes_out(inputs_only, size):
    def gathered(rank):
        told = collectives((rank, 100), collective="all_gather")
        return replace(told, sent=tuple(replace(s, inputs_only=inputs_only) for s in told.sent))

    (found,) = matched({r: gathered(r) for r in (0, 1)}).instances
    assert found.bytes == size


def test_what_does_not_synchronise_is_not_split():
    found = matched({r: collectives((r, 100), collective="send_recv") for r in (0, 1)})
    assert found.instances == ()
    assert "does not synchronise" in found.unmatched[0]


def two_steps(*events):
    """(begin, end, step) of one rank's all-reduces."""
    return Collectives(
        begin=np.array([b for b, _, _ in events]),
        end=np.array([e for _, e, _ in events]),
        step=np.array([step for _, _, step in events]),
        sent=tuple(Sent(collective="all_reduce", bytes=1000, group="", seq=None) for _ in events),
    )


def test_steps_are_numbered_by_those_that_all_ranks_show():
    """Rank 1's profiler began a step later: its first step is the other's second, and the job's first."""
    ranks = {0: two_steps((0, 50, 0), (100, 150, 1)), 1: two_steps((110, 150, 0), (200, 250, 1))}
    labels = {0: ("ProfilerStep#1", "ProfilerStep#2"), 1: ("ProfilerStep#2", "ProfilerStep#3")}
    assert shared_steps(labels.values()) == ["ProfilerStep#2"]
    clocks = dict.fromkeys(ranks, RankClock(origin_ns=0, host="a"))
    (found,) = match(ranks, 2, labels, {}, clocks).instances
    assert (found.step, found.late, found.transfer) == (0, 1, 40)


def test_a_step_that_a_third_rank_does_not_show_is_none_of_the_jobs():
    ranks = {r: two_steps((r, 50, 0), (100 + r, 150, 1)) for r in (0, 1)} | {2: two_steps((100, 150, 0))}
    labels = {0: ("#1", "#2"), 1: ("#1", "#2"), 2: ("#2",)}
    clocks = dict.fromkeys(ranks, RankClock(origin_ns=0, host="a"))
    found = match(ranks, 3, labels, {0: {"": (0, 1)}}, clocks).instances
    assert [one.step for one in found] == [-1, 0]


def test_a_group_of_some_ranks_that_nobody_lists_is_not_matched_over_all():
    """Two pairs of one name: each trace shows a group of two, and all four ranks use it."""

    def pair(*events):
        calls = collectives(*events)
        return replace(calls, sent=tuple(replace(sent, group_size=2) for sent in calls.sent))

    ranks = {0: pair((0, 20)), 1: pair((0, 20)), 2: pair((5, 15)), 3: pair((5, 15))}
    found = matched(ranks, world_size=4)
    assert found.instances == ()
    assert "the members of their group are not known" in found.unmatched[0]
