"""Known models end to end, inference, and the largest batch under a limit that is real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.config.compose import requests
from scaling.launchers.jobs import Job, create, plan_request
from scaling.launchers.runner import find_largest
from scaling.records.paths import RunFolder
from scaling.records.run import read_largest

pytestmark = pytest.mark.slow

LOCAL = (
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "measure=quick",
    "measure.rounds_max=3",
    "measure.budget_s=40",
    "tracking=disabled",
    "run_dir=run",
)
MIB = 2**20
MORE, LESS = 750 * MIB, 600 * MIB
GREEDY = """
import torch
from scaling import Workload

class Greedy(torch.nn.Module):
    # 16 MiB a sample that backward needs, and next to no arithmetic
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x).unsqueeze(-1).expand(-1, -1, 65536).exp().mean(-1)

def make_batch(n, generator):
    return torch.randn(n, 64, generator=generator), torch.zeros(n, 64)

def factory():
    return Workload(module=Greedy(), make_batch=make_batch, loss=torch.nn.functional.mse_loss,
                    optimizer=lambda p: torch.optim.AdamW(p, lr=1e-4))
"""
DIES = """
import os, signal
import torch
from scaling import Workload

def make_batch(n, generator):
    if n > 1 and os.environ.get("RANK") == "1":
        os.kill(os.getpid(), signal.SIGKILL)  # as a cgroup's limit does
    return torch.randn(n, 4, generator=generator), torch.zeros(n, 4)

def factory():
    return Workload(module=torch.nn.Linear(4, 4), make_batch=make_batch, loss=torch.nn.functional.mse_loss,
                    optimizer=lambda p: torch.optim.SGD(p, lr=1e-4))
"""
BRUTE_FORCE = """
import sys
import torch, torch.distributed as dist
import mine

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)
workload = mine.factory()
ddp = torch.nn.parallel.DistributedDataParallel(workload.module, gradient_as_bucket_view=True)
optimizer = workload.optimizer(ddp.parameters())
for batch in range(1, 200):
    for _ in range(2):
        inputs, targets = workload.make_batch(batch, None)
        workload.loss(ddp(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        del inputs, targets
    dist.barrier()
    print(batch, flush=True)
"""


def limited(limit: int) -> list[str]:
    return ["sh", "-c", f'ulimit -d {limit // 1024}; exec "$@"', "sh"]


def brute_force(folder: Path, limits: tuple[int, int]) -> int:
    """The largest batch of a plain DDP loop, one more sample at a time, under `ulimit -d`."""
    processes = [
        subprocess.Popen(
            [*limited(limit), sys.executable, "-c", BRUTE_FORCE, str(rank), str(folder / "store")],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "MALLOC_MMAP_THRESHOLD_": str(MIB),
                "PYTHONPATH": f"{Path(__file__).parents[2]}:{folder}",
            },
        )
        for rank, limit in enumerate(limits)
    ]
    try:
        said = [process.communicate(timeout=120)[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return min(int(batches[-1]) for batches in said)


def test_the_largest_batch_is_that_of_brute_force_and_of_the_rank_with_less_memory(
    scaling, tmp_path, analysis_of, left_behind
):
    (tmp_path / "mine.py").write_text(GREEDY)
    done = scaling(
        "run",
        *LOCAL,
        "model=custom",
        "model._target_=mine.factory",
        "world_sizes=[2]",
        "batch=max",
        f"memory_limit={MORE}B",
        "inject.rank=1",
        f"inject.memory_limit={LESS}B",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    document = analysis_of(tmp_path / "run")
    (largest,) = document["largest_batch"]
    assert {t["rank"] for t in largest["tries"] if t["status"] == "oom"} == {1}
    truth = brute_force(tmp_path, (MORE, LESS))
    assert abs(largest["found"] - truth) <= largest["step"]
    assert 0.8 * largest["found"] <= largest["proved"] <= largest["found"]
    rows = document["training"]
    assert [r["status"] for r in rows] == ["done"] * len(rows)
    assert max(r["batch"] for r in rows) == largest["proved"]
    assert all(r["samples_per_s"]["value"] > 0 for r in rows)
    assert "proved in fresh processes" in " ".join(done.stdout.split())
    assert left_behind(tmp_path) == []


def test_a_process_that_is_killed_for_its_memory_is_an_answer_too(tmp_path, monkeypatch, left_behind):
    (tmp_path / "mine.py").write_text(DIES)
    monkeypatch.chdir(tmp_path)
    own = ("model=custom", "model._target_=mine.factory", "world_sizes=[2]", "batch=max", "memory_limit=2GiB")
    (request,) = requests("run", [*LOCAL, *own]).items
    plan, folder = plan_request(request), RunFolder(tmp_path / "run")
    create(Job(request=request, plan=plan, folder=folder))
    assert find_largest(plan, folder, lambda _record: None).status == "done"
    (found,) = read_largest(folder).items
    assert [(t.batch, t.status) for t in found.tries] == [(1, "fits"), (2, "killed")]
    assert found.proved == 1
    assert left_behind(tmp_path) == []


def test_no_batch_that_fits_is_said_in_a_line(scaling, tmp_path, left_behind):
    done = scaling(
        "run", *LOCAL, "model=mlp", "world_sizes=[2]", "batch=max", "memory_limit=20MiB", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "no batch fits" in done.stderr
    assert left_behind(tmp_path) == []


def test_detection_answers_on_both_ranks_at_once(scaling, tmp_path, analysis_of):
    pytest.importorskip("transformers", reason="the `models` extra is not installed")
    done = scaling(
        "run",
        *LOCAL,
        "model=rtdetr_r18",
        "model.image=128",
        "task=inference",
        "batch=[1,2]",
        "world_sizes=[1,2]",
        "vary.precision=[fp32,bf16]",
        "vary.autocast=[true]",
        "measure.budget_s=200",  # some processors take long for bf16
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    rows = analysis_of(tmp_path / "run")["inference"]
    assert len(rows) == 8
    assert {r["status"] for r in rows} == {"done"}
    assert all(r["latency_ms"]["p50"]["value"] > 0 and r["peak_bytes"] > 100 * MIB for r in rows)
    alone, both = (
        next(r for r in rows if (r["world_size"], r["batch"], r["precision"]) == (n, 1, "fp32"))
        for n in (1, 2)
    )
    assert alone["latency_ms"]["p99"] is None or alone["latency_ms"]["p99"]["value"] > 0
    assert both["samples_per_s"]["value"] > 0
    assert "samples" in done.stdout


@pytest.mark.parametrize(
    "model",
    [
        ("model=resnet50", "model.image=32", "batch_per_rank=2"),
        (
            "model=gpt2",
            "model.layers=2",
            "model.width=64",
            "model.heads=4",
            "model.sequence=32",
            "batch_per_rank=2",
        ),
    ],
    ids=["resnet50", "gpt2"],
)
def test_a_known_model_is_trained(model, scaling, tmp_path, point_of):
    pytest.importorskip("transformers", reason="the `models` extra is not installed")
    done = scaling("run", *LOCAL, *model, "world_sizes=[1,2]", "measure.fabric_max=64KiB", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    environment = json.loads((tmp_path / "run/launches/0/env-0.json").read_text())
    point = point_of(tmp_path / "run", 2)
    assert point["comm"]["bytes_per_step"] == environment["parameter_bytes"]
    assert point["efficiency"]["value"] > 0
