"""Traces that torch.profiler records here, of a real HSDP training over Gloo, against counting by every border.

Gloo carries a reduce-scatter as an all-reduce, and its events name no process group, so both all-reduces are one kind.
"""

import gzip
import json
import subprocess
import sys
from itertools import pairwise

import pytest

from scaling.cli.main import main

TRAINING = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, schedule

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
rank = dist.get_rank()
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=3),
    on_trace_ready=lambda p: p.export_chrome_trace(f"{sys.argv[1]}/rank-{rank}.json.gz"),
    record_shapes=True,
) as profiler:
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        profiler.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hsdp")
    (folder / "training.py").write_text(TRAINING)
    (folder / "traces").mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--log-dir={folder}", "--standalone"]
    torchrun += ["--nproc-per-node=4", str(folder / "training.py"), str(folder / "traces")]
    subprocess.run(torchrun, check=True, capture_output=True, timeout=300)
    return folder / "traces"


def unions(path):
    """Per kind: ms of the union of its events, and events, in the steps of one file; by every border in turn."""
    with gzip.open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep"))
    begin, end = steps[0][0], steps[-1][1]
    spans = {}
    for e in events:
        if e["name"].startswith("gloo:"):
            spans.setdefault(e["name"], []).append((e["ts"], e["ts"] + e["dur"]))
    found = {}
    for name, of in spans.items():
        marks = sorted({begin, end, *(t for span in of for t in span)})
        inside = [(a, b) for a, b in pairwise(marks) if begin <= a and b <= end]
        busy = sum(b - a for a, b in inside if any(low <= a and b <= high for low, high in of))
        found[name] = (busy / 1e3 / len(steps), sum(begin <= low < end for low, _ in of) / len(steps))
    return found


@pytest.mark.slow
@pytest.mark.launch
def test_the_kinds_of_a_real_hsdp_training(recorded, capsys):
    assert main(["trace", str(recorded), "--json"]) in (0, 3)
    (job,) = json.loads(capsys.readouterr().out)["trace"]
    kinds = {k["collective"]: k for k in job["kinds"]}
    assert kinds.keys() == {"all_gather", "all_reduce"}
    each = [unions(path) for path in sorted(recorded.glob("*.gz"))]
    for name, kind in kinds.items():
        told = [one[f"gloo:{name}"] for one in each]
        assert kind["calls"]["value"] == pytest.approx(sum(c for _, c in told) / 4)
        assert kind["busy_ms"]["value"] == pytest.approx(sum(b for b, _ in told) / 4, rel=1e-3)
    # Three units: gathered in forward and in backward; reduced over the shards, then over the replicas.
    assert [kinds[name]["calls"]["value"] for name in ("all_gather", "all_reduce")] == [6, 6]
