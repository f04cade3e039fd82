"""Named phases of real steps: the rank that is late in one, and what it costs, beside the sleep that makes it late."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.measures

SCRIPT = Path(__file__).with_name("phase_ranks.py")
NAP_MS, SHORT_MS = 30.0, 5.0
"""What the second rank's rollout takes longer; what that of the other takes, and a reward."""
NEAR_MS = 3.0


@pytest.fixture
def named(found):
    """named(loop) -> its point, and its phases by name."""

    def read(loop):
        (point,) = found(loop).points
        return point, {phase.name: phase for phase in point.phases}

    return read


@pytest.mark.parametrize("loop", ["apart", "met"])
def test_the_rank_that_is_late_in_a_phase_and_its_cost(named, loop):
    point, phases = named(loop)
    assert list(phases) == ["rollout", "reward", "update"]
    assert [phase.late_rank for phase in phases.values()] == [1, None, None]
    assert phases["rollout"].late_ms.value == pytest.approx(NAP_MS, abs=NEAR_MS)
    assert (point.straggler.rank, point.straggler.phase) == (1, "rollout")
    assert point.straggler.cost_ms.value == pytest.approx(NAP_MS, abs=NEAR_MS)


def test_the_others_wait_in_the_phase_in_which_they_meet(named):
    for loop, waits in (("apart", "update"), ("met", "rollout")):
        _, phases = named(loop)
        assert phases[waits].waits_ms.value == pytest.approx(NAP_MS / 2, abs=NEAR_MS)
        others = [phase.waits_ms.value for phase in phases.values() if phase.name != waits]
        assert max(others) < NEAR_MS
        assert phases["reward"].ms.value == pytest.approx(SHORT_MS, abs=NEAR_MS)


def test_what_does_not_train_is_neither_input_nor_forward(named):
    point, phases = named("apart")
    parts = point.parts_ms
    assert max(parts.input.value, parts.forward.value) < NEAR_MS
    beside = phases["rollout"].ms.value + phases["reward"].ms.value
    assert parts.host.value == pytest.approx(beside, abs=NEAR_MS)


def test_equal_ranks_are_late_in_no_phase(named):
    point, phases = named("even")
    assert point.straggler is None
    assert [phase.late_rank for phase in phases.values()] == [None] * 3


def test_what_cannot_be_a_phase_is_left_out_and_said_once(ranks, named):
    _, phases = named("misused")
    assert set(phases) == {"rollout", "reward", "raises", "update"}
    said = ranks[0]["misused"]
    assert [sum(words in line for line in said) for words in ("a text", "do not nest", "inside step()")] == [
        1
    ] * 3
    assert (len(said), len(ranks[0]["even"])) == (3, 1)
