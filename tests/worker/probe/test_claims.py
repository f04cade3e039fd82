"""Loops that wait for their collectives, and loops that ask whether these are done: there nobody is named."""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("claim_ranks.py")
NAP_MS = 20
BYTES = 4 * (64 * 64 + 64 + 64 * 4 + 4)
"""Of the model's gradients."""

pytestmark = pytest.mark.slow  # trainings of two ranks


@pytest.mark.parametrize(("kind", "late"), [("waits", False), ("late", True)])
def test_where_all_is_waited_for_nothing_is_unclaimed_and_a_late_rank_is_named(found, kind, late):
    (point,) = found(kind).points
    assert (point.comm.bytes_per_step, point.comm.unclaimed_bytes) == (BYTES, 0)
    if not late:
        assert point.straggler is None
        return
    assert (point.straggler.rank, point.straggler.phase) == (1, "forward")
    assert point.straggler.cost_ms.value == pytest.approx(NAP_MS, abs=4)


@pytest.mark.parametrize("kind", ["polls", "polls_late"])
def test_where_a_loop_polls_its_bytes_are_unclaimed_and_nobody_is_named(found, kind):
    analysis = found(kind)
    (point,) = analysis.points
    assert point.comm.bytes_per_step == BYTES
    assert 0 < point.comm.unclaimed_bytes <= BYTES
    assert point.straggler is None
    (verdict,) = analysis.verdicts
    assert verdict.cause == "undecided"
    assert (
        "of the bytes that a step sends were not seen to be waited for, so who is late is not known"
        in (verdict.evidence[0])
    )


def test_ranks_that_send_nothing_are_told_so_and_nobody_is_named(found):
    """As where a framework made a process group and wrapped nothing."""
    analysis = found("apart")
    (point,) = analysis.points
    assert point.straggler is None
    (verdict,) = analysis.verdicts
    assert (verdict.cause, verdict.evidence[0][:33]) == ("undecided", "no rank was seen to send anything")


def test_losses_do_not_depend_on_how_a_loop_waits(ranks):
    for rank in ranks:
        assert all(losses == rank["waits"] for kind, losses in rank.items() if kind != "apart")
