"""The harness holds nothing of its own beside a training on a CPU, held in resident bytes."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import os
import sys
from functools import partial
from pathlib import Path

import torch

WIDTH, LAYERS = 2048, 8
peak = 0


def note():
    """Write this process's largest resident memory where it has grown, kB."""
    global peak
    status = Path("/proc/self/status").read_text()
    now = int(status.split("VmHWM:")[1].split()[0])
    if now > peak:
        peak = now
        folder = sys.argv[1] if __name__ == "__main__" else os.environ["PEAKS"]
        Path(folder, os.environ.get("RANK", "tryout")).write_text(str(peak))


def loss(outputs, targets):
    note()
    return (outputs - targets).square().mean()


def parts():
    torch.manual_seed(0)
    module = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    return module, lambda n, g: (torch.randn(n, WIDTH, generator=g),) * 2, partial(torch.optim.AdamW, lr=1e-5)


def factory():
    from scaling import Workload

    module, make_batch, optimizer = parts()
    return Workload(module=module, make_batch=make_batch, loss=loss, optimizer=optimizer)


def train():
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    module, make_batch, optimizer = parts()
    ddp = DistributedDataParallel(module, gradient_as_bucket_view=True)
    update = optimizer(ddp.parameters())
    for _ in range(6):
        inputs, targets = make_batch(8, torch.Generator().manual_seed(0))
        loss(ddp(inputs), targets).backward()
        update.step()
        update.zero_grad(set_to_none=True)
    note()
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
'''
EXACT = {"MALLOC_MMAP_THRESHOLD_": str(2**18), "OMP_NUM_THREADS": "1"}
"""Every tensor of a layer has pages of its own, which go back when it is freed; so resident bytes count tensors."""


def peaks_mib(folder):
    return {path.name: int(path.read_text()) / 2**10 for path in folder.iterdir()}


@pytest.mark.slow
def test_a_training_under_the_harness_takes_what_it_takes_alone(measured, analysis_of, tmp_path, monkeypatch):
    (tmp_path / "heavy.py").write_text(PROGRAM)
    for name, value in EXACT.items():
        monkeypatch.setenv(name, value)
    bare = []
    for ranks in (1, 2):
        folder = tmp_path / f"bare-{ranks}"
        folder.mkdir()
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words = [sys.executable, *start, "heavy.py", str(folder)]
        subprocess.run(words, cwd=tmp_path, check=True, timeout=200, capture_output=True)
        bare.append(max(peaks_mib(folder).values()))
    held = Path(tmp_path / "held")
    held.mkdir()
    monkeypatch.setenv("PEAKS", str(held))
    run, _ = measured(
        "topology=local topology.device=cpu topology.ranks_per_host=2 world_sizes=[1,2] batch_per_rank=8",
        "model=custom model._target_=heavy.factory tracking=disabled",
        "measure=quick measure.steps=2 measure.rounds_max=3 measure.budget_s=120 measure.fabric_max=1MiB",
    )
    most = peaks_mib(held)
    assert {"0", "1"} <= set(most)
    weights = 8 * 2048**2 * 4 / 2**20
    assert min(bare) > 4 * weights  # parameters, gradients and two states
    for rank in ("0", "1"):  # every arm at both world sizes, sweep and replay
        assert most[rank] <= 1.02 * max(bare), (most, bare)
    for alone, point in zip(bare, analysis_of(run)["points"], strict=True):
        assert point["memory"]["peak_bytes"] / 2**20 == pytest.approx(alone, rel=0.02)
