"""One's own script under `scaling launch` on the nodes of an allocation."""

import json
import sys
from pathlib import Path

import scaling

ROOT = Path(scaling.__file__).parents[1]
SCRIPT = ROOT / "tests/launched/scripts/unchanged.py"


def test_a_script_without_a_line_of_ours_scales_over_two_nodes(login):
    done = login.slurm.run(
        "salloc",
        "--partition=pcie",
        "--nodes=2",
        "--exclusive",
        *("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "scaling.cli"),
        *("launch", "--no-probe", "--world-sizes", "1,2", "topology=slurm_pcie", "topology.ranks_per_host=1"),
        *("repeats=1", "run_dir=run", str(SCRIPT), "60"),
        cwd=login.home,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((login.home / "run/study.json").read_text())
    assert [(p["world_size"], p["hosts"]) for p in found["points"]] == [(1, 1), (2, 2)]
    late = found["points"][1]["straggler"]
    assert (late["rank"], late["phase"]) == (1, "input")
    assert found["run"]["topology"] == "slurm_pcie"
