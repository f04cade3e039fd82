"""One's own loop under `scaling launch` on simulated accelerators: what the study says is what the simulation does."""

import json
from pathlib import Path

import pytest
from support.commands import run_scaling

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("own_loop.py")
LATE_MS = 12
STEP_MS = 12 * 3 - 3
"""Four matrix products in forward, seven in backward (the first layer's input needs no gradient)."""


def test_a_late_rank_the_transfers_and_the_phases_of_ones_own_loop(tmp_path):
    sizes = ("--world-sizes", "1,2", "topology=local", "topology.device=sim", "topology.ranks_per_host=2")
    done = run_scaling(
        "launch", *sizes, "repeats=1", "run_dir=run", str(SCRIPT), str(1000 * LATE_MS), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run/study.json").read_text())
    assert found["run"]["simulated"]
    one, two = found["points"]
    assert one["step_ms"]["value"] == pytest.approx(STEP_MS, rel=0.02)
    late = two["straggler"]
    assert (late["rank"], late["phase"]) == (1, "forward")
    assert late["cost_ms"]["value"] == pytest.approx(LATE_MS, rel=0.02)
    for bucket in two["comm"]["buckets"]:
        assert bucket["transfer_ms"]["value"] == pytest.approx(0.020 + bucket["bytes"] / 1e6, abs=0.02)
    assert two["parts_ms"]["optimizer"]["value"] > two["parts_ms"]["host"]["value"]  # clipping is in it
    assert two["step_ms"]["value"] == pytest.approx(
        STEP_MS + LATE_MS + two["parts_ms"]["exposed_transfer"]["value"], rel=0.02
    )
