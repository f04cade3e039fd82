"""Every kind of file that is read, changed at random: refused in one line, left out, or read; never a traceback.

Each change is within 20 s and 1 GiB, and nothing that is printed acts on the terminal. The same changes are made in
each run. `SCALING_FUZZ=20` makes twenty times as many.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil

import pytest
from support.hostile import assert_refused_or_done, bounded, spoiled
from support.traces import Trace

from scaling.hardware import sampler
from scaling.hardware.devices import Host
from scaling.hardware.nvml import Gpus
from scaling.launchers.failure.evidence import gather
from scaling.records.paths import RunFolder

pytestmark = pytest.mark.slow

CHANGES = 12 * int(os.environ.get("SCALING_FUZZ", "1"))
"""Changes to each kind of file."""
ENVIRONMENT = {
    "schema": 1,
    "rank": 0,
    "host": 0,
    "hostname": "a",
    "device_name": None,
    "cpu": "A CPU",
    "cores": 8,
    "buffers_bytes": 4096,
    "torch": "2.9.0",
    "numa_nodes": "0",
    "environment": {"OMP_NUM_THREADS": "1"},
}
MEMORY = {
    "world_sizes": {"1": {"peak_bytes": 10**9, "communicators_bytes": 0}, "2": {"peak_bytes": 10**9}},
    "device_clock_bound_ns": 900,
}
ENDED = {
    "error": {
        "rank": 1,
        "type": "ValueError",
        "message": "wrong",
        "stage": "warm-up at world size 2",
        "first": True,
    },
    "stack": {"rank": 0, "stage": "blocks at world size 2", "collective": None, "stack": ["a.py:3 in step"]},
}
PROGRESS = {"stage": "measuring", "elapsed_s": 3.0, "left_s": 9.0, "patience_s": 60.0}
CONFIG = """\
model: {name: mlp, args: {width: 512}}
topology: &here {name: here, kind: emulated, hosts: 2, ranks_per_host: 1, link: {rate: 200mbit, share: 0.9}}
world_sizes: [1, 2]
env: {A: "1"}
seed: 1e-4
"""
TOPOLOGY = """\
name: mine
kind: local
hosts: 2
ranks_per_host: 8
device: auto
backend: auto
link: {rate: 100gbit, share: 0.8, latency_us: 4.0, source: a data sheet}
levels:
  - {name: nvlink, link_class: NV18, ranks: 8, rate: 3600gbit, source: a data sheet}
islands: [[0, 1, 2, 3], [4, 5, 6, 7]]
numa: [[0, 1, 2, 3, 4, 5, 6, 7]]
nics:
  - {name: mlx5_0, near: [0, 1], link_class: PIX, rate: 400gbit}
note: &note text
"""


@pytest.fixture(scope="module")
def seed(simulate, cluster, fake_nvml, tmp_path_factory) -> RunFolder:
    """A good run with every file that `analyze` and `report` read."""
    folder = RunFolder(tmp_path_factory.mktemp("hostile") / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), rounds=4, steps=3), folder.path)
    launch = folder.launch(0)
    launch.env(0).write_text(json.dumps(ENVIRONMENT))
    launch.envs(0).write_text(json.dumps({**ENVIRONMENT, "rank": 1}))
    launch.memories(0).write_text(json.dumps(MEMORY))
    gpus = Gpus(fake_nvml(count=2))
    lines = [sampler.head(0, gpus, Host()), *(sampler.sample(gpus, Host()) for _ in range(3))]
    launch.telemetry(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder.config.write_text(CONFIG)
    launch.progress.write_text(json.dumps(PROGRESS))
    assert assert_refused_or_done("analyze", str(folder.path))[0] == 0
    return folder


@pytest.fixture
def folder(seed, tmp_path) -> RunFolder:
    """A copy of it, to be changed."""
    return RunFolder(shutil.copytree(seed.path, tmp_path / "run"))


def changes(kind: str, good: bytes):
    """Every change of a kind of file, the same in each run."""
    for number in range(CHANGES):
        yield spoiled(good, random.Random(f"{kind} {number}"))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "launches/0/rank-0.jsonl",
            "launches/0/rank-1.jsonl",
            "plan.json",
            "status.json",
            "launches/0/env-0.json",
        ),
        *("launches/0/telemetry-0.jsonl", "launches/0/memories-0.jsonl"),
    ],
)
def test_a_run_with_a_changed_file_is_analysed_or_refused(folder, name):
    path = folder.path / name
    good = path.read_bytes()
    for changed in changes(name, good):
        path.write_bytes(changed)
        assert_refused_or_done("analyze", str(folder.path))


def test_a_changed_analysis_is_printed_or_refused(folder):
    good = folder.analysis.read_bytes()
    for changed in changes("analysis", good):
        folder.analysis.write_bytes(changed)
        assert_refused_or_done("report", str(folder.path))


def test_a_changed_config_is_read_or_refused(folder):
    for changed in changes("config", CONFIG.encode()):
        folder.config.write_bytes(changed)
        assert_refused_or_done("predict", str(folder.path), "world_sizes=[4]")


@pytest.mark.parametrize("name", ["status.json", "launches/0/progress.json"])
def test_the_state_of_a_run_is_told_or_refused(folder, name):
    path = folder.path / name
    good = path.read_bytes()
    for changed in changes(name, good):
        path.write_bytes(changed)
        assert_refused_or_done("status", str(folder.path))


@pytest.mark.parametrize("kind", ENDED)
def test_what_an_ended_rank_wrote_is_taken_or_left_out(folder, kind):
    launch = folder.launch(0)
    path = launch.path / f"{kind}-1.json"
    for changed in changes(kind, json.dumps(ENDED[kind]).encode()):
        path.write_bytes(changed)
        with bounded():
            gather(launch)


def test_a_changed_topology_is_planned_or_refused(tmp_path):
    path = tmp_path / "topology" / "mine.yaml"
    path.parent.mkdir()
    for changed in changes("topology", TOPOLOGY.encode()):
        path.write_bytes(changed)
        assert_refused_or_done("plan", "--config-dir", str(tmp_path), "topology=mine", "world_sizes=[1]")


def test_a_changed_baseline_is_compared_with_or_refused(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep = ["compare", str(folder.path), "--baseline", "main"]
    assert assert_refused_or_done(*keep, "--keep")[0] == 0
    (path,) = tmp_path.glob("runs/baselines/main/*/baseline.json")
    for changed in changes("baseline", path.read_bytes()):
        path.write_bytes(changed)
        assert_refused_or_done(*keep)


def trace_bytes() -> bytes:
    made = Trace(rank=0, world_size=2)
    for step in range(3):
        at = 1000 * step
        made.step(step, at, 900).kernel("gemm", at + 100, 300, at + 90).all_reduce(at + 420, 100, at + 410)
    return json.dumps(made.document).encode()


@pytest.mark.parametrize("packed", [False, True], ids=["json", "gz"])
def test_a_changed_trace_is_read_or_named_and_the_other_is_kept(tmp_path, packed):
    good = trace_bytes()
    (tmp_path / "rank1.json").write_bytes(good.replace(b'"rank": 0', b'"rank": 1'))
    path = tmp_path / ("rank0.json.gz" if packed else "rank0.json")
    for number, changed in enumerate(changes(f"trace {packed}", gzip.compress(good) if packed else good)):
        path.write_bytes(changed)
        into = tmp_path / "out" / str(number)
        code, printed = assert_refused_or_done(
            "trace", str(path), str(tmp_path / "rank1.json"), "--out", str(into), "--name", "t"
        )
        assert code in (0, 3), printed
        if "1 rank" in printed:
            assert path.name in printed


@pytest.mark.parametrize("kind", ["nccl-tests", "topo", "nccl-xml"])
def test_a_changed_file_of_a_tool_is_imported_or_refused(tmp_path, kind):
    good = TOOLS[kind].encode()
    path = tmp_path / f"{kind}.txt"
    for changed in changes(kind, good):
        path.write_bytes(changed)
        assert_refused_or_done("import", kind, str(path), "--into", str(tmp_path / "topology"))


TOOLS = {
    "nccl-tests": """\
# nThread 1 nGpus 2
#  Rank  0 Group  0 Pid  1 on a device  0 [0000:1a:00] NVIDIA X
#  Rank  1 Group  0 Pid  2 on a device  1 [0000:1b:00] NVIDIA X
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
       1024           256     float     sum      -1    10.00    0.10    0.10      0    10.00    0.10    0.10      0
     1048576        262144     float     sum      -1    110.0    9.53    9.53      0    110.0    9.53    9.53      0
     4194304       1048576     float     sum      -1    410.0   10.23   10.23      0    410.0   10.23   10.23      0
""",
    "topo": """\
        GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV2     NODE    0-11,24-35      0
GPU1    NV2      X      PIX     0-11,24-35      0
mlx5_0  NODE    PIX      X
""",
    "nccl-xml": """\
<system version="1"><cpu numaid="0">
  <pci busid="0000:1b:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
    <gpu dev="0" sm="80"><nvlink target="0000:1c:00.0" count="4" tclass="0x030200"/></gpu></pci>
  <pci busid="0000:1c:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="1" sm="80"/></pci>
  <pci busid="0000:1a:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0" speed="100000"/></nic></pci>
</cpu></system>
""",
}
