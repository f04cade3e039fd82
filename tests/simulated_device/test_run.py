"""`scaling run` on simulated accelerators, from the plan to the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulated_device import ranks

pytestmark = pytest.mark.slow  # real launches of several ranks

ROOT = Path(__file__).parents[2]
MIB = 2**20
SHARE = 0.90
"""What the training takes of the device's memory."""
BATCH = 32


def filling(width=1024, depth=4):
    """A model whose training is large beside its batch, trained with AdamW."""
    import torch

    from scaling.worker.data.workload import Workload

    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(depth)]
    return Workload(
        module=torch.nn.Sequential(*layers),
        make_batch=lambda n, generator: (torch.randn(n, width, generator=generator),) * 2,
        loss=lambda outputs, targets: (outputs - targets).square().mean(),
        optimizer=torch.optim.AdamW,
    )


def measured(folder, *overrides):
    command = [
        sys.executable,
        "-m",
        "scaling.cli",
        "run",
        "topology=local",
        "topology.device=sim",
        *overrides,
    ]
    done = subprocess.run(
        [*command, f"run_dir={folder}", "tracking=disabled", "measure=quick"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "analysis.json").read_text())


def alone(rank, world, *, capacity=None):
    """The peak of a training with DDP as anybody writes it: a few steps, nothing else in the process."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from scaling.worker.simulated.device import configure

    if capacity is not None:
        configure(capacity_bytes=capacity)
    workload = filling()
    module = workload.module.to("sim")
    optimizer = workload.optimizer(module.parameters())
    ddp = DistributedDataParallel(module, gradient_as_bucket_view=True)
    batch = workload.make_batch(BATCH, torch.Generator().manual_seed(0))
    for _ in range(5):
        inputs, targets = (t.to("sim") for t in batch)
        workload.loss(ddp(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.accelerator.synchronize()
    return torch.accelerator.max_memory_allocated()


def test_a_model_that_fills_the_device_is_measured_at_every_world_size(tmp_path):
    """It trains alone in 90 % of the memory, so the harness can have no second wrapper, optimizer or buffer there."""
    peaks = ranks.run(alone, 2)
    capacity = int(max(peaks) / SHARE)
    assert ranks.run(alone, 2, capacity=capacity) == peaks
    analysis = measured(
        tmp_path / "run",
        "model=custom",
        "model._target_=simulated_device.test_run.filling",
        "topology.ranks_per_host=4",
        "world_sizes=[1,2,4]",
        f"batch_per_rank={BATCH}",
        f"topology.simulated.capacity={capacity}B",
        "measure.budget_s=20",
        "measure.fabric_max=1MiB",
    )
    assert [(p["world_size"], p["status"]) for p in analysis["points"]] == [(n, "done") for n in (1, 2, 4)]
    for point in analysis["points"]:
        memory = point["memory"]
        assert memory["peak_bytes"] == pytest.approx(max(peaks), rel=0.02)
        assert memory["harness_bytes"] == 0
        whole = 4 * (1024 * 1024 + 1024) * 4  # bytes of the parameters
        assert memory["parameters_bytes"] == memory["gradients_bytes"] == whole
        assert memory["optimizer_bytes"] == pytest.approx(2 * whole, rel=1e-4)
        assert 0 < memory["activations_bytes"] < 0.1 * whole
