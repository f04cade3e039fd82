"""Traces of sharded training: kinds by process group, and collectives that copy engines carry.

The truth is computed a second time, by walking over the instants at which something begins or ends.
"""

import random
from itertools import pairwise

import pytest

from scaling.cli.main import main

NAMES = {
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
KINDS = {"_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter", "allreduce": "all_reduce"}
SHARD, REPLICATE = "mesh_shard", "mesh_replicate"


def groups(rank):
    """HSDP on 2 x 2: ranks 0, 1 and 2, 3 shard; 0, 2 and 1, 3 replicate. Each group has a name of its own."""
    shard, replicate = (0, 1) if rank < 2 else (2, 3), (0, 2) if rank % 2 == 0 else (1, 3)
    return {
        "0": ("default_pg", (0, 1, 2, 3)),
        str(1 + rank // 2): (SHARD, shard),
        str(3 + rank % 2): (REPLICATE, replicate),
    }


def named(rank, said):
    return next(name for name, (text, _) in groups(rank).items() if text == said)


def hsdp(trace, tmp_path, seed=0):
    """Four ranks, three steps of compute and collectives at random places. Returns what was put in, by rank."""
    chosen = random.Random(seed)
    truth = {}
    for rank in range(4):
        config = [
            {"pg_name": n, "pg_desc": d, "backend_config": "cuda:nccl", "pg_size": len(m), "ranks": list(m)}
            for n, (d, m) in groups(rank).items()
        ]
        made = trace(rank, 4)
        made.document["distributedInfo"]["pg_config"] = config
        truth[rank] = {"compute": [], "borders": []}
        for k in range(3):
            at = 1000 + 1000 * k
            made.step(k, at - 5, 995)
            made.kernel("gemm", at, 10, launched=at - 4)  # the window begins here
            truth[rank]["borders"].append(at)
            truth[rank]["compute"].append((at, at + 10))
            for _ in range(12):
                begin, length = at + 20 + chosen.randrange(850), 1 + chosen.randrange(90)
                made.kernel("gemm", begin, length, launched=at + 2)
                truth[rank]["compute"].append((begin, begin + length))
            for where, names in (
                (SHARD, ("_allgather_base", "_reduce_scatter_base")),
                (REPLICATE, ("allreduce",)),
            ):
                for name in names:
                    for _ in range(4):
                        begin, length = at + 20 + chosen.randrange(850), 1 + chosen.randrange(90)
                        told = {
                            "Collective name": name,
                            "In msg nelems": 100,
                            "Out msg nelems": 200,
                            "dtype": "Float",
                        }
                        told |= {"Group size": 2, "Process Group Name": named(rank, where)}
                        stream = 20 if where == SHARD else 24
                        made.kernel(NAMES[name], begin, length, launched=at + 3, stream=stream, **told)
                        truth[rank].setdefault((KINDS[name], where), []).append((begin, begin + length))
        last = 4000
        made.kernel("gemm", last - 10, 10, launched=3900)
        truth[rank]["compute"].append((last - 10, last))
        truth[rank]["borders"].append(last)
        made.write(tmp_path / f"rank-{rank}.json")
    return truth


def walked(spans, without, begin, end):
    """Length of the union of spans, and of its part outside of others, by every instant of a border."""
    marks = sorted({begin, end, *(t for s in (*spans, *without) for t in s)})
    busy = bare = 0
    for low, high in pairwise(marks):
        if begin <= low and high <= end and any(b <= low and high <= e for b, e in spans):
            busy += high - low
            bare += (high - low) * (not any(b <= low and high <= e for b, e in without))
    return busy, bare


@pytest.mark.parametrize("seed", range(4))
def test_kinds_by_group_equal_an_independent_computation(trace, tmp_path, analysed, seed):
    truth = hsdp(trace, tmp_path, seed)
    code, found = analysed(tmp_path)
    assert code == 0
    (job,) = found["trace"]
    found = {(k["collective"], k["group"]): k for k in job["kinds"]}
    assert found.keys() == {("all_gather", SHARD), ("reduce_scatter", SHARD), ("all_reduce", REPLICATE)}
    for key, row in found.items():
        parts = [
            walked(of[key], of["compute"], *of["borders"][k : k + 2])
            for of in truth.values()
            for k in range(2)  # the last window has no end
        ]
        busy, bare = (sum(column) / len(parts) / 1e3 for column in zip(*parts, strict=True))
        assert row["busy_ms"]["value"] == pytest.approx(busy, abs=1e-9)
        assert row["exposed_ms"]["value"] == pytest.approx(bare, abs=1e-9)
        assert row["hidden_ms"]["value"] == pytest.approx(busy - bare, abs=1e-9)
        assert (row["calls"]["value"], row["bytes"], row["group_size"]) == (4, 4 * 800, 2)
    every = [
        walked([s for key in found for s in of[key]], of["compute"], *of["borders"][k : k + 2])[1]
        for of in truth.values()
        for k in range(2)
    ]
    exposed = sum(r["exposed_ms"]["value"] for r in job["ranks"]) / 4
    assert exposed == pytest.approx(sum(every) / len(every) / 1e3, abs=1e-9)


def test_the_two_groups_of_hsdp_are_apart_in_the_report(trace, tmp_path, capsys):
    hsdp(trace, tmp_path / "traces")
    assert main(["trace", str(tmp_path / "traces"), "--out", str(tmp_path / "out"), "-v"]) == 0
    said = capsys.readouterr().out
    assert "Communication by kind and process group" in said
    assert SHARD in said
    assert REPLICATE in said


def copied(trace, rank, *, lane=True, call=True):
    """An all-gather by copy engines: two copies from the peers, under its call, on the communicator's stream."""
    made = trace(rank)
    for k in range(3):
        at = 1000 + 100 * k
        made.step(k, at - 5, 99)
        made.kernel("gemm", at, 40, launched=at - 4)
        if lane:
            made.all_reduce(at + 20, 10, launched=at + 1)
        if call:
            told = {"Collective name": "_allgather_base", "In msg nelems": 500, "Out msg nelems": 1000}
            told |= {"dtype": "Float", "Process Group Name": "0", "Group size": 2}
            made.add("cpu_op", "record_param_comms", at + 2, 6, **told)
        for j in range(2):
            name = "Memcpy PtoP (Device -> Device)" if j else "Memcpy DtoD (Device -> Device)"
            made.kernel(name, at + 50 + 20 * j, 15, launched=at + 3 + j, stream=20, cat="gpu_memcpy")
        made.kernel(
            "Memcpy DtoD (Device -> Device)", at + 90, 5, launched=at + 12, stream=7, cat="gpu_memcpy"
        )
    return made


@pytest.mark.parametrize("lane", [True, False])
def test_copies_that_carry_a_collective_are_communication(trace, tmp_path, analysed, lane):
    for rank in range(2):
        copied(trace, rank, lane=lane).write(tmp_path / f"rank-{rank}.json")
    code, found = analysed(tmp_path)
    assert code == 0
    (job,) = found["trace"]
    row = next(k for k in job["kinds"] if k["collective"] == "all_gather")
    assert row["busy_ms"]["value"] == pytest.approx(0.030)
    assert row["exposed_ms"]["value"] == pytest.approx(0.030)
    assert (row["calls"]["value"], row["bytes"]) == (1, 4000)
    # on the stream that computes: a copy
    assert job["ranks"][0]["copies_ms"]["value"] == pytest.approx(0.005)
    matched = next(c for c in job["collectives"] if c["collective"] == "all_gather")
    # From the first copy's begin to the last's end, in two whole steps.
    assert (matched["count"], matched["time_us"]["value"]) == (2, 35)


def test_copies_on_a_communicators_stream_without_a_call_are_named(trace, tmp_path, analysed):
    for rank in range(2):
        copied(trace, rank, call=False).write(tmp_path / f"rank-{rank}.json")
    code, found = analysed(tmp_path)
    assert code == 0
    assert found["trace"][0]["ranks"][0]["exposed_ms"]["value"] == pytest.approx(0.030)
    assert any("Memcpy PtoP" in w and "counted as communication" in w for w in found["quality"]["warnings"])


@pytest.mark.parametrize(("name", "offered"), [("_allgather_base", False), ("allreduce", True)])
def test_remedies_of_ddp_are_offered_for_all_reduces_alone(trace, tmp_path, analysed, name, offered):
    for rank in range(2):
        made = trace(rank)
        for k in range(6):
            at = 1000 + 100 * k
            made.step(k, at - 5, 99).add("cpu_op", "aten::mm", at - 4, 2)
            made.kernel("gemm", at, 40, launched=at - 4)
            told = {"Collective name": name, "In msg nelems": 500, "Out msg nelems": 1000, "dtype": "Float"}
            told |= {"Process Group Name": "0", "Group size": 2}
            made.kernel(NAMES[name], at + 40, 40, launched=at + 1, stream=20, **told)
        made.write(tmp_path / f"rank-{rank}.json")
    _, found = analysed(tmp_path)
    link = next(v for v in found["verdicts"] if v["cause"] == "link_latency")
    assert bool(link["try"]) is offered
