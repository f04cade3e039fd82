"""A probe around real pipelines of two ranks: what it changes (nothing), what it leaves, what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import run_scaling

pytestmark = pytest.mark.slow  # trainings of two ranks

SCRIPT = Path(__file__).with_name("pipeline_ranks.py")
RANKS = 2
MICROBATCHES, MESSAGE = 4, 8 // 4 * 16 * 4
SCHEDULES = [("gpipe", 2), ("1f1b", 2), ("interleaved", 4)]


@pytest.mark.parametrize(("name", "stages"), SCHEDULES)
def test_losses_and_weights_are_those_without_a_probe_and_of_the_whole_model(ranks, name, stages):
    for rank in ranks:
        probed, without, whole = rank[f"{name} probed"], rank[name], rank[f"alone {stages}"]
        assert probed == without  # to the bit, and nothing is left behind
        assert without["losses"] == pytest.approx(whole["losses"] if without["losses"] else [], rel=1e-5)
        for stage, weights in without["weights"].items():
            for mine, theirs in zip(weights, whole["weights"][stage], strict=True):
                assert _flat(mine) == pytest.approx(_flat(theirs), abs=1e-6)
    assert [bool(rank[name]["losses"]) for rank in ranks] == [False, True]


@pytest.mark.parametrize(("name", "stages"), SCHEDULES)
def test_every_message_is_counted_to_the_byte(found, name, stages):
    (point,) = found(name).points
    between = stages // RANKS  # stages of a rank with one on the other rank behind them, at most
    sent = {(one.kind, one.phase): (one.calls, one.bytes) for one in point.comm.collectives}
    each = (MICROBATCHES * between, MICROBATCHES * between * MESSAGE)
    assert sent == dict.fromkeys(
        [("send", "forward"), ("recv", "forward"), ("send", "backward"), ("recv", "backward")], each
    )
    assert {one.communicator for one in point.comm.collectives} == {"pipeline"}
    assert point.pipeline.microbatches == MICROBATCHES
    assert point.pipeline.stages_per_rank == stages // RANKS


@pytest.mark.parametrize(("name", "stages"), SCHEDULES)
def test_the_parts_add_up_to_the_step(found, name, stages):
    (point,) = found(name).points
    parts = point.parts_ms
    names = ("input", "forward", "backward", "exposed_transfer", "exposed_skew", "optimizer", "host")
    whole = sum(getattr(parts, part).value for part in names)
    assert whole == pytest.approx(point.arms_ms.probe.value, rel=1e-6)
    assert min(getattr(parts, part).value for part in names) >= 0


def test_what_is_not_followed_is_said_in_a_line(ranks):
    first = ranks[0]
    assert "its stages are replicated or sharded as well, which is not followed" in first["replicated"]
    assert first["replicated"].count("\n") == 1
    assert "a schedule of torch.distributed.pipelining is expected" in first["a stage"]


def test_reports_name_the_schedule_and_its_bubble(ranks, kept):
    done = run_scaling("analyze", "1f1b", "-v", cwd=kept)
    assert done.returncode == 0, done.stderr
    assert "Schedule1F1B, 4 microbatches; a rank waits for others" in " ".join(done.stdout.split())
    assert "8 over all ranks, in 4 microbatches" in done.stdout
    assert "pp, pipeline 2 at 2 ranks, Schedule1F1B, 1 stage a rank" in " ".join(done.stdout.split())
    saved = json.loads((kept / "1f1b" / "analysis.json").read_text())
    assert saved["points"][0]["pipeline"]["computed_bubble"] == pytest.approx(1 / 5)
    page = (kept / "1f1b" / "report.html").read_text()
    assert "Schedule1F1B" in page


def _flat(values):
    return [one for part in values for one in (_flat(part) if isinstance(part, list) else [part])]
