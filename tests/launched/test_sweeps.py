"""`scaling run` driven by sweeps: W&B's own agent against a stand-in of its server, and a sweeper of Hydra's kind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.commands import assert_refusal, command, environment, run_scaling

from scaling import resources

LOCAL = [
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "world_sizes=[1,2]",
    "model=mlp",
    "model.width=64",
    "measure=quick",
    "measure.budget_s=30",
    "measure.rounds_max=3",
    "measure.fabric_max=64KiB",
]
PLUGINS = Path(__file__).with_name("plugins")
EXAMPLE = Path(__file__).parents[2] / "examples" / "wandb_sweep.yaml"


def objective_of(analysis: dict) -> float:
    point = max(analysis["points"], key=lambda p: p["world_size"])
    return point["samples_per_s"]["value"]


def climbing(verb: str, *overrides: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A multirun that the sweeper in plugins/ drives."""
    path = os.pathsep.join([resources.import_path(), str(PLUGINS)])
    arguments = (verb, "-m", "hydra/sweeper=climbing", *LOCAL, *overrides)
    return run_scaling(*arguments, cwd=cwd, env={"PYTHONPATH": path})


@pytest.mark.slow
def test_an_agent_of_a_wandb_sweep(tmp_path, wandb_server, analysis_of):
    sweep = yaml.safe_load(EXAMPLE.read_text())
    program, *rest = sweep["command"]
    assert program == "scaling"
    called = command([*rest[:-1], *LOCAL, "run_dir=run", rest[-1]])
    wandb_server.sweep = sweep | {"command": called}
    arguments = {"ddp.bucket_cap_mb": {"value": 5}, "accumulation_steps": {"value": 2}}
    wandb_server.commands.append({"type": "run", "run_id": "sweep001", "program": program, "args": arguments})
    done = subprocess.run(
        [sys.executable, "-m", "wandb", "agent", "--count", "1", "me/scaling-sweep/abc123"],
        cwd=tmp_path,
        env=environment({"HOME": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert wandb_server.sweeps == {"sweep001": "me/scaling-sweep/abc123"}
    told = wandb_server.summaries["sweep001"]["objective"]
    assert told == pytest.approx(objective_of(analysis_of(tmp_path / "run")))
    assert set(arguments) <= set(sweep["parameters"])


@pytest.mark.slow
def test_a_sweeper_that_searches_gets_the_objective(tmp_path, analysis_of):
    done = climbing("run", "tracking=disabled", "run_dir=search", "accumulation_steps=1,8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = [float(value) for value in re.findall(r"# objective  samples_per_s (\S+)", done.stdout)]
    assert told == [
        pytest.approx(objective_of(analysis_of(tmp_path / "search" / str(index))), rel=1e-5)
        for index in (0, 1)
    ]
    best = re.search(r"^best accumulation_steps=(\d) (\S+)$", done.stdout, re.MULTILINE)
    assert (best.group(1), float(best.group(2))) == ("18"[told.index(max(told))], max(told))


def test_plan_says_that_it_has_no_results_for_such_a_sweeper(tmp_path):
    done = climbing("plan", "seed=1,2", cwd=tmp_path)
    said = "searches by results; `scaling run` has them"
    assert_refusal(done.returncode, done.stdout, done.stderr, said)
