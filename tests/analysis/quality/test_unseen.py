"""What is said of DDP's broadcast of buffers, seen or not."""

import re
from dataclasses import replace

import polars as pl
import pytest
from support.tables import sent_in

from scaling.analysis.decompose.quantities import CallTraffic
from scaling.analysis.quality import untracked_traffic
from scaling.analysis.results import Verdict
from scaling.settings.plan import OWN_LOOP


@pytest.fixture(scope="module")
def run(cluster, measure):
    return measure(
        cluster.Truth(world_sizes=(2,), hosts=2, buffers_ns=1e6, rounds=3, steps=4, step_noise=0.0)
    )


def test_buffers_that_were_seen_are_said_with_their_share(run):
    (said,) = untracked_traffic.warnings(run.tables, run.plan, 2048)
    share = float(re.search(r"forward: ([\d.]+)%", said)[1])
    assert share == pytest.approx(100 * 1e6 / run.expected.points[2].step_ns["probe"], rel=0.15)
    assert said.startswith("the module has 2 KiB of buffers")
    assert untracked_traffic.doubts(run.tables, run.plan, 2048) == ()


def test_buffers_that_were_not_seen_make_every_finding_a_hint(run):
    steps = run.tables.steps.with_columns(buffer_wait_ns=0)
    tables = replace(run.tables, steps=steps)
    (said,) = untracked_traffic.warnings(tables, run.plan, 2048)
    assert "not seen" in said
    assert "a hint, not a finding" in untracked_traffic.doubts(tables, run.plan, 2048)[0]


def test_a_module_without_buffers_says_nothing(run):
    assert (
        untracked_traffic.warnings(run.tables, run.plan, 0)
        == untracked_traffic.doubts(run.tables, run.plan, 0)
        == ()
    )


# Collectives beside the model's own


def with_others(run, took_ns, at="begin_ns"):
    """Every detailed step has one more all-reduce on each rank, which begins at a stamp of the step."""
    steps = run.tables.steps.filter((pl.col("arm") == "probe") & pl.col("detailed"))
    rows = run.tables.buckets
    sent = {"seq": 9, "kind": 0, "group": 2, "bytes": 4096, "phase": 3}
    more = sent_in(steps, rows, **sent, launch_ns=at, done_ns=pl.col(at) + int(took_ns))
    return replace(run.tables, buckets=pl.concat([rows, more]))


def test_other_collectives_are_said_with_what_they_take_at_most(run):
    step_ns = run.expected.points[2].step_ns["probe"]
    tables = with_others(run, 0.1 * step_ns)
    found = untracked_traffic.others(tables)
    assert (found.calls, found.bytes) == (1, 4096)
    assert found.share == pytest.approx(0.1, rel=0.1)
    (said,) = untracked_traffic.warnings(tables, run.plan, 0)
    assert said.startswith("a step has 1 collective other than the model's own (4 KiB")
    assert said.endswith("of the step on a rank, counted in the phase where they lie")
    loop = replace(run.plan, source=OWN_LOOP)
    (said,) = untracked_traffic.warnings(tables, loop, 0)
    assert said.endswith(" counted as communication where waits were seen")
    assert untracked_traffic.others(run.tables) == untracked_traffic.Others()


def test_they_are_no_buckets_and_change_no_figure(run):
    found = run.analyze(with_others(run, 1e6)).points[0]
    assert found.comm == run.point(2).comm
    assert found.parts_ms == run.point(2).parts_ms


def test_what_lies_in_the_wait_for_the_last_bucket_is_known(run):
    assert untracked_traffic.others(with_others(run, 1e5, at="compute_end_ns")).share < 0.001


@pytest.mark.parametrize(
    ("share", "calls", "first"),
    [
        pytest.param(0.01, CallTraffic(), "input", id="little"),
        pytest.param(0.2, CallTraffic(), "undecided", id="no wait was followed"),
        pytest.param(0.2, CallTraffic(bytes=4096), "input", id="an own loop, every wait was seen"),
        pytest.param(0.2, CallTraffic(bytes=2**30, unclaimed_bytes=2**30), "undecided", id="none was seen"),
        pytest.param(0.2, CallTraffic(bytes=4096, polled=True), "undecided", id="it asked instead"),
    ],
)
def test_a_cause_that_would_rest_on_them_is_undecided_unless_their_waits_are_left_out(
    run, share, calls, first
):
    tables = with_others(run, share * run.expected.points[2].step_ns["probe"])
    given = tuple(
        Verdict(cause=cause, world_size=2, share=None, confidence="high", evidence=())
        for cause in ("input", "link_bandwidth")
    )
    trial = replace(run.records.trial(2), beside=calls)
    told = untracked_traffic.bounded(given, tables, [trial])
    assert [v.cause for v in told] == [first, "link_bandwidth"]
    if first == "undecided":
        assert told[0].evidence[0].startswith("input: cannot be told from waiting")


@pytest.mark.parametrize(
    ("given", "told"), [(("input", "link_bandwidth"), "link_bandwidth"), (("host",), "undecided")]
)
def test_no_phase_that_holds_the_forward_of_another_model_is_a_cause(run, given, told):
    verdicts = tuple(
        Verdict(cause=cause, world_size=2, share=None, confidence="high", evidence=()) for cause in given
    )
    trial = replace(run.records.trial(2), beside=CallTraffic(bytes=4096, unseen_forwards=True))
    assert [v.cause for v in untracked_traffic.bounded(verdicts, run.records.tables, [trial])] == [told]
