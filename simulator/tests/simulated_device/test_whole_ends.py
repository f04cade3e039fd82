"""Runs that fill simulated accelerators' memory or lose one of them, and the doctor there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import run_scaling

from simulated_device import ranks
from simulated_device.test_memory_of_arms import BATCH, SHARE, alone_bytes

pytestmark = pytest.mark.slow

SIM = (
    "topology=local",
    "topology.device=sim",
    "topology.ranks_per_host=2",
    "topology.simulated.link_us=20",
    "topology.simulated.link_gb_s=5",
    "measure=quick",
    "measure.budget_s=120",  # on a busy machine; the rounds are three whatever they take
    "measure.rounds_max=3",
    "tracking=disabled",
)
OWN = ("model=custom", "model._target_=mine.factory")
MINE = """
import os
import torch
from scaling import Workload

RANK = int(os.environ.get("RANK", "-1"))  # -1: no rank of a launch


class Lost(torch.nn.Module):
    '''Rank 1 loses its device while the launch measures.'''

    steps = 0

    def forward(self, x):
        Lost.steps += 1
        if RANK == 1 and Lost.steps == 130:  # after the warm-up and a round
            from scaling_simulator.device import lose_device

            lose_device(1, after_us=5000)
        return x


class Hungry(torch.nn.Module):
    '''On rank 1 a forward takes 200 MiB for a moment.'''

    def forward(self, x):
        if RANK == 1:
            torch.empty(200 * 2**20, dtype=torch.uint8, device=x.device)
        return x


def layers(*more):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)], *more)


def factory(lost=False, hungry=False):
    return Workload(
        module=layers(*[Lost()] * lost, *[Hungry()] * hungry),
        make_batch=lambda n, generator: (torch.randn(n, 512, generator=generator),) * 2,
        loss=lambda outputs, targets: (outputs - targets).square().mean(),
        optimizer=torch.optim.AdamW,
    )
"""


@pytest.fixture
def run(tmp_path):
    """`scaling VERB` on two simulated accelerators, in a folder that has the models above."""
    (tmp_path / "mine.py").write_text(MINE)

    def call(verb, *overrides):
        return run_scaling(verb, *SIM, *overrides, cwd=tmp_path, timeout_s=480)

    return call


def document(folder: Path):
    return json.loads((folder / "run/analysis.json").read_text())


def test_a_model_that_needs_nine_tenths_of_a_device_is_measured_there(run, tmp_path):
    """AdamW at 1 and 2 ranks; the peak that is reported is that of a training without the harness."""
    alone = max(ranks.run(alone_bytes, 2))
    done = run(
        "run",
        *OWN,
        f"batch_per_rank={BATCH}",
        "world_sizes=[1,2]",
        f"topology.simulated.capacity={int(alone / SHARE)}B",
        "run_dir=run",
    )
    assert done.returncode == 0, done.stderr
    for point in document(tmp_path)["points"]:
        memory = point["memory"]
        assert memory["peak_bytes"] == pytest.approx(alone, rel=0.02)
        assert memory["harness_bytes"] == 0
        assert memory["parameters_bytes"] == memory["gradients_bytes"] == 4 * 4 * (512 * 512 + 512)
        assert memory["optimizer_bytes"] == pytest.approx(2 * memory["parameters_bytes"], rel=1e-3)


def test_a_rank_that_runs_out_of_memory_ends_its_world_size_alone(run, tmp_path):
    """Both ranks agree on it before any gradient is reduced, and what fits is measured."""
    small = "topology.simulated.capacity=128MiB"
    done = run(
        "run", *OWN, "+model.args.hungry=true", "batch_per_rank=32", "world_sizes=[1,2]", small, "run_dir=run"
    )
    assert done.returncode == 3, done.stderr
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert {trial["world_size"]: trial["status"] for trial in status["trials"]} == {1: "done", 2: "oom"}
    assert len(status["launches"]) == 1
    assert "Traceback" not in done.stderr
    one, two = document(tmp_path)["points"]
    assert one["step_ms"] is not None
    assert two["step_ms"] is None


def test_a_model_that_no_rank_holds_alone_is_held_against_the_smallest_world_size(run, tmp_path):
    """Two ranks that share the parameters have room. One has none for the model beside its copy under fully_shard."""
    alone = max(ranks.run(alone_bytes, 2))
    done = run(
        "run",
        *OWN,
        f"batch_per_rank={BATCH}",
        "parallel=fsdp",
        "topology.ranks_per_host=4",
        "world_sizes=[2,4]",
        f"topology.simulated.capacity={int(1.15 * alone)}B",
        "run_dir=run",
    )
    assert done.returncode == 0, done.stderr
    found = document(tmp_path)
    two, four = found["points"]
    assert four["base_world_size"] == 2
    assert four["arms_ms"]["bare_one"] is None
    assert four["efficiency"]["value"] == pytest.approx(
        two["step_ms"]["value"] / four["step_ms"]["value"], rel=0.01
    )
    assert (two["efficiency"], four["loss"]) == (None, None)
    assert four["comm"]["collectives"]
    hidden = "what 2 ranks lose against one is hidden"
    assert any(hidden in said for said in found["quality"]["warnings"])
    assert "of the throughput a rank at 2 ranks" in " ".join(done.stdout.split())


def test_the_largest_batch_is_the_one_that_a_device_holds(run, tmp_path):
    done = run(
        "run", *OWN, "batch=max", "world_sizes=[2]", "topology.simulated.capacity=64MiB", "run_dir=run"
    )
    assert done.returncode == 0, done.stderr
    (found,) = document(tmp_path)["largest_batch"]
    most = 64 * 2**20
    assert max(ranks.run(alone_bytes, 2, batch=found["proved"])) <= most
    assert max(ranks.run(alone_bytes, 2, batch=int(1.15 * found["found"]))) > most


def test_a_device_that_is_lost_is_named_as_the_cause(run, tmp_path):
    done = run("run", *OWN, "+model.args.lost=true", "world_sizes=[2]", "run_dir=run")
    assert done.returncode == 3, done.stderr
    first = next(line for line in done.stderr.splitlines() if "launch 0 failed" in line)
    assert "AcceleratorError: sim error: device 1 was lost" in first
    assert "world size 2" in first
    assert "log-1.txt" in first


def test_the_doctor_finds_nothing_wrong_with_simulated_accelerators(run, tmp_path):
    done = run("doctor", *OWN, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [rank["stage"] for rank in found["ranks"]] == ["end", "end"]
    assert found["differences"] == []
    assert {problem["severity"] for problem in found["problems"]} <= {"warning"}
    (pair,) = found["pairs"]
    assert pair["bandwidth_gbit_s"]["value"] == pytest.approx(40, rel=0.005)
    assert found["roofline"]["bound"] == "launch"  # 50 kernels a step, 5 us each
