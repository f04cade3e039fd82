"""A sharded step from its list of collectives: who waits for what, held to arithmetic."""

from __future__ import annotations

import pytest

from scaling.analysis.predict.own_times import OwnTimes
from scaling.analysis.predict.units import step_ns
from scaling.spec.listing import Listed, ListedCollective, ListedMark

GATHER, AGAIN, SCATTER = ("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward")
LAYERS = ("all_reduce", "forward")
OVER_COPIES = ("all_reduce", "backward")


def collective(kind, unit, axis="shard"):
    return ListedCollective(kind=kind[0], phase=kind[1], unit=unit, axis=axis, ranks=2, bytes=8)


def listed(collectives, order):
    """`order`: `l0 w0 l1 ...`, launches and waits."""
    marks = tuple(ListedMark(waits=word[0] == "w", collective=int(word[1:])) for word in order.split())
    return Listed(collectives=tuple(collectives), marks=marks)


def own(**waits):
    """Times at which a rank alone comes to `forward0=(launch, wait)` and so on."""
    names = {"forward": GATHER, "again": AGAIN, "reduce": SCATTER}
    return OwnTimes(at={turn(*names[key[:-1]], int(key[-1])): at for key, at in waits.items()})


def turn(kind, phase, unit, before=0, axis="shard"):
    return (kind, axis, phase, unit, before)


ONE = [collective(GATHER, 0), collective(SCATTER, 0)]


def test_a_unit_that_is_gathered_and_reduced_waits_for_both():
    alone = own(forward0=(5, 5), reduce0=(105, 105))
    assert step_ns(listed(ONE, "l0 w0 l1 w1"), alone, [20, 30], ["a", "a"]) == 5 + 20 + 100 + 30


def test_what_is_gathered_ahead_is_hidden_as_far_as_compute_reaches():
    two = [collective(GATHER, 0), collective(GATHER, 1)]
    alone = own(forward0=(0, 0), forward1=(0, 50))
    for took, expected in ((30, 10 + 50), (50, 10 + 50), (80, 10 + 80)):
        assert step_ns(listed(two, "l0 w0 l1 w1"), alone, [10, took], ["a", "a"]) == expected


def test_collectives_of_one_wire_follow_each_other_and_those_of_two_do_not():
    two = [collective(GATHER, 0), collective(GATHER, 1)]
    alone = own(forward0=(0, 0), forward1=(0, 0))
    order = listed(two, "l0 l1 w0 w1")
    assert step_ns(order, alone, [10, 20], ["a", "a"]) == 30
    assert step_ns(order, alone, [10, 20], ["a", "b"]) == 20


def test_copies_are_reduced_when_their_shards_are():
    """The rank launches it at once, as on a device; it begins when the reduce-scatter has ended, on another wire."""
    both = [collective(SCATTER, 0), collective(OVER_COPIES, 0, "replicate")]
    alone = own(reduce0=(40, 40))
    assert step_ns(listed(both, "l0 l1 w0 w1"), alone, [10, 7], ["within", "between"]) == 40 + 10 + 7


def test_micro_steps_have_times_of_their_own():
    twice = [collective(GATHER, 0), collective(GATHER, 0)]
    at = {turn(*GATHER, 0): (3, 3), turn(*GATHER, 0, 1): (53, 53)}
    assert step_ns(listed(twice, "l0 w0 l1 w1"), OwnTimes(at=at), [10, 10], ["a", "a"]) == 3 + 10 + 50 + 10


def test_a_slower_rank_takes_longer_by_its_own_times_alone():
    alone = own(forward0=(5, 5), reduce0=(105, 105))
    longer = step_ns(listed(ONE, "l0 w0 l1 w1"), alone, [20, 30], ["a", "a"], pace=2.0)
    assert longer == pytest.approx(2 * 105 + 50)


def test_what_is_left_behind_the_last_wait_belongs_to_the_step():
    alone = own(forward0=(5, 5), reduce0=(105, 105))
    assert step_ns(listed(ONE[:1], "l0 w0"), alone, [20], ["a"]) == 5 + 20 + 100


def test_a_bucket_is_launched_when_the_unit_that_completes_it_is_reduced_and_all_are_waited_for_at_the_end():
    """DDP: units 1 and 0 are reduced after 60 and 100; the bucket of unit 1 moves while unit 0 computes."""
    alone = own(forward0=(0, 0), reduce1=(60, 60), reduce0=(100, 100))
    buckets = [collective(OVER_COPIES, unit, "replicate") for unit in (1, 0)]
    for first, expected in ((30, 100 + 15), (50, 110 + 15)):
        assert step_ns(listed(buckets, "l0 l1 w1 w0"), alone, [first, 15], ["a", "a"]) == expected


def test_layers_that_are_divided_over_more_ranks_take_their_part_of_the_compute():
    """Two sums of a divided layer at 20 and 80, behind 4 of an optimizer: compute is halved, the optimizer is not."""
    at = {
        turn(*GATHER, 0): (4, 4),
        turn(*LAYERS, 0, axis="tensor"): (24, 24),
        turn("all_reduce", "backward", 0, axis="tensor"): (84, 84),
    }
    found = OwnTimes(at=at, phases={"forward": 20.0, "backward": 60.0}).scaled(
        {"forward": 0.5, "backward": 0.5}
    )
    assert [both[1] for both in found.at.values()] == [4, 14, 44]
    assert found.phases == {"forward": 10, "backward": 30}
