"""Traces made by hand, and the real ones where they are."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from scaling.cli.main import main

SHARED = Path(os.environ.get("SCALING_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


class Trace:
    """A Kineto trace in the making; times in us."""

    def __init__(self, rank=0, world_size=2, **meta):
        self.document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "A GPU"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
            "host_name": "here",
            **meta,
            "traceEvents": [],
        }
        self.correlation = 0

    def add(self, cat, name, ts, dur, tid=1, **args):
        self.document["traceEvents"].append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )
        return self

    def step(self, number, ts, dur):
        return self.add("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def kernel(self, name, ts, dur, launched=None, stream=7, tid=1, cat="kernel", **args):
        """A kernel and, where `launched` is given, the runtime call that launched it."""
        self.correlation += 1
        if launched is not None:
            self.add("cuda_runtime", "cudaLaunchKernel", launched, 1, tid=tid, correlation=self.correlation)
        return self.add(cat, name, ts, dur, tid=stream, stream=stream, correlation=self.correlation, **args)

    def all_reduce(self, ts, dur, launched=None, elements=1000, **args):
        told = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements}
        told |= {"dtype": "Float", "Process Group Name": "0", "Group size": 2, **args}
        return self.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", ts, dur, launched, stream=20, **told)

    def write(self, path, indent=1):
        data = json.dumps(self.document, indent=indent).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
        return path


@pytest.fixture
def trace():
    """trace(rank, world_size) begins a trace."""
    return Trace


@pytest.fixture
def shared():
    """shared("topo_m/mle_2.txt"): the path of a real file; skips where there are none."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{path} is not there; SCALING_SHARED_DATA names the folder")
        return path

    return find


@pytest.fixture
def analysed(capsys):
    """analysed(*arguments): `scaling trace ARGUMENTS --json` -> (exit status, the document)."""

    def run(*arguments):
        code = main(["trace", *map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def job(trace, tmp_path):
    """Two ranks, five whole steps of 100 us: 40 compute, an all-reduce, 20 nothing. Rank 1 comes 10 us late to it.

    Rank 0's all-reduce lasts 40 us from 40 us on, of which it waits 10; rank 1's lasts 30 us, and begins after
    10 us of more compute.
    """

    def write(folder="job", ranks=(0, 1)):
        for rank in ranks:
            made = trace(rank)
            late = 10 * rank
            for k in range(6):
                at = 1000 + 100 * k
                made.step(k, at - 5, 99)
                made.add("cpu_op", "aten::mm", at - 4, 2)
                made.kernel("gemm", at, 40 + late, launched=at - 4)
                made.all_reduce(at + 40 + late, 40 - late, launched=at + 30)
            made.write(tmp_path / folder / f"rank-{rank}.json.gz")
        return tmp_path / folder

    return write
