"""A hang is what makes no progress, not what is slow.

How long ranks take to join: it grows with them, and the range widens where nothing was measured.
"""

import pytest
from support.commands import planned

from scaling.settings.timeouts import (
    COLLECTIVE,
    LATE,
    LAUNCHER,
    LAZY_RANKS,
    LOADER,
    MEASURED_RANKS,
    UNTIMED_S,
    Silence,
    collective_s,
    group_s,
    joining,
    lazy,
    patience_s,
    start_limit_s,
    timed_s,
)

START = Silence(begun=False, moved_s=0.0)
UNTIMED = Silence(begun=True, moved_s=0.0)

CASES = {
    "nothing was heard of the ranks at all": (Silence(begun=False), 300),
    "they start, and use no processor": (START, 300),
    "they start, and read a slow disk for 200 s": (Silence(begun=False, moved_s=200), 200 + 300),
    "they start, and never stop reading": (Silence(begun=False, moved_s=5000), UNTIMED_S),
    "a first forward sleeps for ever": (UNTIMED, 49.2),
    "a first forward takes five minutes of processor time": (Silence(begun=True, moved_s=300), 349.2),
    "a first forward spins for ever": (Silence(begun=True, moved_s=5000), UNTIMED_S),
    "a compiler that is expected to take long": (
        Silence(begun=True, moved_s=5000, expected_s=300),
        49.2 + LATE * 300,
    ),
    "a compiler that sleeps": (Silence(begun=True, moved_s=0, expected_s=300), 49.2),
    "only rank 0's reports are seen, before a step": (Silence(begun=True), 300),
    "only rank 0's reports are seen, and it said how long": (Silence(begun=True, expected_s=30), 180),
    "a step of 50 ms hangs": (Silence(begun=True, step_s=0.05, moved_s=0), 49.2),
    "a step of 50 ms spins on its device": (Silence(begun=True, step_s=0.05, moved_s=5000), 49.2),
    "a step of 20 s is late": (Silence(begun=True, step_s=20, moved_s=100), 164),
    "a block is all that is seen": (Silence(begun=True, step_s=1, expected_s=20), 60 + LATE * 20),
}


@pytest.mark.parametrize(("seen", "expected_s"), CASES.values(), ids=CASES)
def test_the_patience(seen, expected_s):
    assert patience_s(seen, timeout_s=60, start_s=300) == pytest.approx(expected_s)


@pytest.mark.parametrize("step_s", [0.001, 1.0, 5.9, 6.1, 40.0])
def test_once_a_step_was_timed_a_hang_is_found_within_a_minute_or_ten_steps(step_s):
    """Whatever the ranks do meanwhile; a loader, peers in a collective and the launcher notice it in this order."""
    bound_s = max(60, 10 * step_s)
    assert timed_s(step_s, 60) == bound_s
    for moved_s in (0.0, 1e4):
        assert patience_s(
            Silence(begun=True, step_s=step_s, moved_s=moved_s), timeout_s=60, start_s=300
        ) == pytest.approx(LAUNCHER * bound_s)
    assert collective_s(step_s, 60) == pytest.approx(COLLECTIVE * bound_s)
    assert LOADER < COLLECTIVE < LAUNCHER < 1


def test_before_a_step_was_timed_no_rank_gives_up_a_peer_that_computes():
    assert collective_s(None, 60) >= UNTIMED_S


CLUSTER = ("topology=nvlink_node", "topology.ranks_per_host=8")


def of(hosts, *more):
    """The plan of 8 ranks on each of some hosts."""
    return planned(*CLUSTER, f"topology.hosts={hosts}", f"world_sizes=[1,8,{8 * hosts}]", *more)


@pytest.mark.parametrize(("at_first_use", "power"), [(False, 2.0), (True, 1.1)])
def test_a_mesh_takes_four_times_as_long_for_twice_the_ranks_and_first_use_little_more_than_twice(
    at_first_use, power
):
    least, most = group_s(256, at_first_use=at_first_use)
    assert least < most
    assert least / group_s(128, at_first_use=at_first_use)[0] == pytest.approx(2**power, rel=0.07)


def test_many_ranks_connect_when_they_first_exchange_something():
    assert not lazy(LAZY_RANKS - 1)
    assert lazy(LAZY_RANKS)
    few, many = (group_s(4096, at_first_use=k) for k in (True, False))
    assert few[0] < 5
    assert many[0] > 500


def test_beyond_what_was_measured_the_range_is_wide_and_says_so():
    known, far = joining(of(MEASURED_RANKS // 8)), joining(of(512))
    assert known.measured
    assert known.high_s < 2 * known.low_s
    assert not far.measured
    assert far.high_s > 5 * far.low_s


def test_more_world_sizes_make_more_groups():
    fewer, more = of(64), of(64, "world_sizes=[1,8,256,512]")
    assert joining(more).high_s > joining(fewer).high_s + group_s(256, at_first_use=True)[1] * 0.99


def test_the_limit_of_a_start_is_the_clusters_with_the_longest_time_to_join():
    assert start_limit_s(of(2)) == 181
    assert start_limit_s(of(512)) == pytest.approx(180 + joining(of(512)).high_s, abs=1)
    assert start_limit_s(of(512, "cluster.start_s=600")) > 660
