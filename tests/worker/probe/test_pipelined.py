"""A probe around real pipelines of two ranks: what it changes (nothing), and what it says (the step, and no cause)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import run_scaling

pytestmark = pytest.mark.slow  # trainings of two ranks

SCRIPT = Path(__file__).with_name("pipeline_ranks.py")
RANKS = 2
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
def test_the_step_is_known_and_nobody_is_called_late(found, name, stages):
    analysis = found(name)
    (point,) = analysis.points
    assert point.status == "done"
    assert point.step_ms.value > 0
    assert point.samples_per_s.value == pytest.approx(
        8e3 / point.step_ms.value
    )  # the ranks share the samples
    assert (point.straggler, point.efficiency, point.comm, point.loss) == (None,) * 4
    assert point.parts_ms.exposed_skew is None
    assert [verdict.cause for verdict in analysis.verdicts] == ["undecided"]


def test_what_is_not_followed_is_said_in_a_line(ranks):
    first = ranks[0]
    assert "its stages are replicated or sharded as well, which is not followed" in first["replicated"]
    assert first["replicated"].count("\n") == 1
    assert "or a schedule of torch.distributed.pipelining" in first["a stage"]


def test_reports_name_the_schedule(ranks, kept):
    done = run_scaling("analyze", "1f1b", "-v", cwd=kept)
    assert done.returncode == 0, done.stderr
    assert "8 over all ranks, in 4 microbatches" in done.stdout
    assert "pp, pipeline 2 at 2 ranks, Schedule1F1B, 1 stage a rank" in " ".join(done.stdout.split())
    assert "Schedule1F1B" in (kept / "1f1b" / "report.html").read_text()


def _flat(values):
    return [one for part in values for one in (_flat(part) if isinstance(part, list) else [part])]
