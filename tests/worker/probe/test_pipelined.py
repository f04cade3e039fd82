"""A probe around real pipelines of two ranks: what it changes (nothing), and which stage it calls late."""

from pathlib import Path

import pytest
from support.commands import run_scaling

pytestmark = pytest.mark.slow  # trainings of two ranks

SCRIPT = Path(__file__).with_name("pipeline_ranks.py")
MICROBATCHES, MESSAGE_BYTES = 4, 4 * 2 * 16
"""A message is what 2 samples of a microbatch are between two stages."""
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
def test_the_step_and_its_waits_are_known_and_equal_stages_are_not_late(found, name, stages):
    (point,) = found(name).points
    assert point.status == "done"
    # all ranks share the samples
    assert point.samples_per_s.value == pytest.approx(8e3 / point.step_ms.value)
    assert (point.straggler, point.efficiency) == (None, None)
    messages = MICROBATCHES * (stages - 1)
    assert point.comm.bytes_per_step <= 2 * messages * MESSAGE_BYTES
    # of activations and of their gradients
    assert point.comm.bytes_per_step >= 2 * MICROBATCHES * MESSAGE_BYTES
    assert point.comm.unclaimed_bytes == 0


def test_a_late_stage_is_named_with_its_phase_and_cost(ranks, found):
    analysis = found("late")
    (point,) = analysis.points
    assert (point.straggler.rank, point.straggler.phase) == (1, "forward")
    assert point.straggler.cost_ms.value == pytest.approx(ranks[1]["slept_ms"], rel=0.15)
    late = next(verdict for verdict in analysis.verdicts if verdict.cause == "straggler")
    assert (
        "a stage that has more to do than the others is late, too: then divide the layers otherwise"
        in late.evidence
    )


def test_what_is_not_followed_is_said_in_a_line(ranks):
    assert "or a schedule of torch.distributed.pipelining" in ranks[0]["a stage"]


def test_reports_name_the_schedule(ranks, kept):
    done = run_scaling("analyze", "1f1b", "-v", cwd=kept)
    assert done.returncode == 0, done.stderr
    assert "8 over all ranks, in 4 microbatches" in done.stdout
    assert "pp, pipeline 2 at 2 ranks, Schedule1F1B, 1 stage a rank" in " ".join(done.stdout.split())
    assert "Schedule1F1B" in (kept / "1f1b" / "report.html").read_text()


def _flat(values):
    return [one for part in values for one in (_flat(part) if isinstance(part, list) else [part])]
