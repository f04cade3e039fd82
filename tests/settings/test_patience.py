"""A hang is what makes no progress, not what is slow."""

from __future__ import annotations

import pytest

from scaling.settings.timeouts import (
    COLLECTIVE,
    LATE,
    LAUNCHER,
    LOADER,
    UNTIMED_S,
    Silence,
    collective_s,
    patience_s,
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
