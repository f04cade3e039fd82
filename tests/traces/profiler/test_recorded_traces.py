"""Traces that torch.profiler records here, of two real Gloo ranks, against counting stretch by stretch."""

import gzip
import json
import subprocess
import sys
from itertools import pairwise

import pytest

from scaling.cli.main import main

pytestmark = pytest.mark.launch

TRAINING = """
import sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
path = f"{sys.argv[1]}/rank-{rank}.json.gz"
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=2, warmup=1, active=4),
    on_trace_ready=lambda p: p.export_chrome_trace(path),
    record_shapes=True,
) as profiler:
    for _ in range(7):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
        loss.backward()
        optimizer.step()
        profiler.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    script = folder / "training.py"
    script.write_text(TRAINING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--log-dir={folder}"]
    torchrun += ["--standalone", "--nproc-per-node=2"]
    (folder / "traces").mkdir()
    subprocess.run(
        [*torchrun, str(script), str(folder / "traces")], check=True, capture_output=True, timeout=120
    )
    return folder / "traces"


def counted(path):
    """Per step in us: compute, exposed and hidden communication, and the rest; edge by edge, in plain Python."""
    with gzip.open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep"))
    calls = [e for e in events if e["name"].startswith(("c10d::", "gloo:", "record_param_comms"))]
    sending = [e for e in calls if e["name"].startswith("gloo:")]
    operators = [e for e in events if e.get("cat") == "cpu_op" and e not in calls]
    borders = [begin for begin, _ in steps] + [steps[-1][1]]
    edges = sorted({t for e in operators + calls for t in (e["ts"], e["ts"] + e["dur"])} | set(borders))
    found = [dict.fromkeys(("compute", "exposed", "hidden", "host"), 0.0) for _ in steps]
    for low, high in pairwise(edges):
        middle = (low + high) / 2
        at = sum(b <= middle for b in borders) - 1
        if not 0 <= at < len(steps):
            continue

        def threads(of, middle=middle):
            return {e["tid"] for e in of if e["ts"] < middle < e["ts"] + e["dur"]}

        computing, moving = threads(operators) - threads(calls), threads(sending)
        if computing:
            found[at]["compute"] += high - low
        if moving:
            found[at]["hidden" if computing else "exposed"] += high - low
        if not computing and not moving:
            found[at]["host"] += high - low
    return found


@pytest.mark.slow
def test_what_two_gloo_ranks_did(recorded, capsys):
    assert main(["trace", str(recorded), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (traced,) = found["trace"]
    assert (traced["device"], traced["world_size"], len(traced["ranks"])) == ("cpu", 2, 2)
    for rank in traced["ranks"]:
        steps = counted(recorded / f"rank-{rank['rank']}.json.gz")
        assert rank["steps"] == len(steps) == 4
        for key in ("compute", "exposed", "hidden", "host"):
            mean = sum(step[key] for step in steps) / len(steps) / 1e3
            assert rank[f"{key}_ms"]["value"] == pytest.approx(mean, rel=1e-3, abs=1e-5), key
    assert {c["collective"] for c in traced["collectives"]} == {"all_reduce"}
    parameters = 64 * 128 + 128 + 128 * 10 + 10
    assert found["points"][0]["comm"]["bytes_per_step"] == 4 * parameters
    parts = [v["value"] for v in found["points"][0]["parts_ms"].values() if v is not None]
    assert sum(parts) == pytest.approx(found["points"][0]["step_ms"]["value"])
