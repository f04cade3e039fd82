"""Figures that exclude each other leave no verdict that rests on them."""

import pytest
from support.results import comm

from scaling.analysis.invariants import contradictions, without_contradicted
from scaling.analysis.results import (
    ArmTimes,
    Collective,
    Loss,
    Measured,
    Point,
    StepParts,
    Straggler,
    Verdict,
)


def about(value, half=0.1):
    return Measured(value, value - half, value + half, 12)


def reduced(transfer_ms, free=1.3):
    gradients = Collective(
        kind="all_reduce",
        phase="backward",
        communicator="replicate",
        ranks=2,
        calls=5,
        bytes=102_000_000,
        transfer_ms=about(transfer_ms),
    )
    return comm(
        102_000_000,
        buckets=(),
        busbw_gbit_s=about(914.0),
        free_speedup=about(free, 0.01),
        collectives=(gradients,),
    )


def late(cost_ms, skew_ms):
    return Straggler(rank=1, phase="input", by_itself=None, cost_ms=about(cost_ms), skew_ms=about(skew_ms))


PARTS = {"input": 1.0, "forward": 12.0, "backward": 17.0, "exposed_transfer": 12.4, "exposed_skew": 4.0}
PARTS |= {"optimizer": 1.0, "host": 1.3}


def point(*, transfer_ms=13.0, free=1.3, straggler=None, probe=48.7, loss=None, **parts_ms):
    """A step of 48.7 ms whose figures fit each other, but for what is given."""
    parts = {name: about(value) for name, value in (PARTS | parts_ms).items()}
    return Point(
        world_size=2,
        hosts=1,
        status="done",
        arms_ms=ArmTimes(probe=about(probe)),
        parts_ms=StepParts(**parts),
        comm=reduced(transfer_ms, free),
        straggler=straggler,
        loss=Loss(**{name: about(value, 0.001) for name, value in (loss or {}).items()}),
    )


def test_figures_that_fit_contradict_nothing():
    fits = point(straggler=late(4.0, 4.5), loss={"straggler": 0.08, "input": 0.02, "communication": 0.25})
    assert contradictions(fits) == ()


@pytest.mark.parametrize(
    ("changes", "causes", "said"),
    [
        (
            {"transfer_ms": 0.9},
            {"link_bandwidth", "link_latency"},
            "a step waits 12.4 ms for data, and 97.3 MiB at 914 Gbit/s take 0.9 ms",
        ),
        (
            {"straggler": late(25.0, 16.0)},
            {"straggler"},
            "a late rank costs 25 ms, and the others wait 16 ms for it",
        ),
        ({"loss": {"straggler": 0.8}}, {"straggler"}, "straggler costs 39 ms, and ranks wait 16.4 ms in all"),
        ({"loss": {"input": 0.2}}, {"input"}, "input costs 9.74 ms, and the phase takes 1 ms"),
        ({"loss": {"host": 0.2}}, {"host"}, "host costs 9.74 ms, and the phase takes 1.3 ms"),
        (
            {"free": 2.0},
            {"link_bandwidth"},
            "free communication would save 24.4 ms, and ranks wait 16.4 ms in all",
        ),
        ({"probe": 60.0}, {"straggler", "link_bandwidth"}, "add up to 48.7 ms, and the step is 60 ms"),
        ({"probe": 40.0}, {"straggler", "link_bandwidth"}, "add up to 48.7 ms, and the step is 40 ms"),
    ],
)
def test_each_pair_that_excludes_each_other_is_said(changes, causes, said):
    found = contradictions(point(**changes))
    assert said in " ".join(clash.text for clash in found)
    assert causes <= {cause for one in found for cause in one.causes}


def test_what_is_within_both_errors_or_a_causes_least_size_is_none():
    assert contradictions(point(transfer_ms=12.4 - 0.03 * 48.7)) == ()
    wide = point(transfer_ms=6.0)
    wide = Point(
        **{name: getattr(wide, name) for name in ("world_size", "hosts", "status", "arms_ms", "comm")},
        parts_ms=StepParts(exposed_transfer=about(12.4, 8.0)),
    )
    assert contradictions(wide) == ()


def test_buffers_are_waited_for_beside_the_bandwidth():
    assert contradictions(point(transfer_ms=8.0), buffers_share=0.07) == ()


def test_verdicts_that_rest_on_them_are_undecided_and_name_the_figures():
    def verdict(cause, n=2):
        return Verdict(cause=cause, world_size=n, share=about(0.25), confidence="high", evidence=())

    found = contradictions(point(transfer_ms=0.9))
    first, *others = without_contradicted(
        (verdict("link_bandwidth"), verdict("overlap"), verdict("link_bandwidth", 4)), found, 2
    )
    assert (first.cause, first.world_size, first.confidence) == ("undecided", 2, "low")
    assert first.evidence[0].startswith("figures that exclude each other: a step waits 12.4 ms for data")
    assert [(v.cause, v.world_size) for v in others] == [("overlap", 2), ("link_bandwidth", 4)]
    kept = (verdict("overlap"),)
    assert without_contradicted(kept, found, 2) == kept
