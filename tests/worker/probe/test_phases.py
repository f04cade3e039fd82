"""Named phases of real steps: the rank that is late in one, and what it costs, beside the sleep that makes it late."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.measures

SCRIPT = Path(__file__).with_name("phase_ranks.py")
RANKS = 2
NAP_MS = 30.0
"""What the second rank's rollout takes longer."""
NEAR_MS = 3.0


@pytest.fixture
def named(found):
    """named(loop) -> its point, and its phases by name."""

    def read(loop):
        (point,) = found(loop).points
        return point, {phase.name: phase for phase in point.phases}

    return read


def test_the_rank_that_is_late_in_a_phase_and_who_waits_for_it(named):
    point, phases = named("met")
    assert list(phases) == ["rollout", "reward", "update"]
    assert [phase.late_rank for phase in phases.values()] == [1, None, None]
    assert phases["rollout"].late_ms.value == pytest.approx(NAP_MS, abs=NEAR_MS)
    assert (point.straggler.rank, point.straggler.phase) == (1, "rollout")
    assert point.straggler.cost_ms.value == pytest.approx(NAP_MS, abs=NEAR_MS)
    waits = [phase.waits_ms.value for phase in phases.values()]
    assert waits[0] == pytest.approx(NAP_MS / 2, abs=NEAR_MS)  # ranks meet in it
    assert max(waits[1:]) < NEAR_MS


def test_what_cannot_be_a_phase_is_left_out_and_said_once(ranks, named):
    _, phases = named("misused")
    assert set(phases) == {"rollout", "reward", "raises", "update"}
    said = ranks[0]["misused"]
    assert [sum(words in line for line in said) for words in ("a text", "do not nest", "inside step()")] == [
        1
    ] * 3
    assert (len(said), len(ranks[0]["met"])) == (3, 1)
