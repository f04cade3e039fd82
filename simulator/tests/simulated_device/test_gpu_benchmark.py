"""benchmarks/gpu.py on the simulated accelerator: it runs whole, judges what it can and says the rest."""

import json
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.processes import captured

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_it_runs_whole_and_says_what_a_simulation_cannot_show(tmp_path):
    program = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--device", "sim"]
    env = environment({"OMP_NUM_THREADS": "1"})
    done = captured([*program, "--out", str(tmp_path / "out.json")], env=env, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "says nothing of a GPU's own times" in done.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    judged = {row["section"] for row in document["rows"] if row["met"] is not None}
    assert judged == {"runs", "ranks", "phases", "anchors"}
    assert all(row["met"] is not False for row in document["rows"])
    unshown = {row["section"] for row in document["rows"] if "not on a simulated" in row["measured"]}
    assert unshown == {"runs", "probe", "telemetry"}
    figures = [row["what"] for row in document["rows"] if "simccl, " in row["what"]]
    assert figures[:3] == ["simccl, 1 rank", "simccl, 2 ranks", "simccl, 4 ranks"]
