"""A rank that is late: its tensor group waits for it first, and then the replicas wait for the group."""

from __future__ import annotations

import polars as pl
import pytest

from scaling.analysis.decompose.quantities import by_kind
from scaling.analysis.decompose.sharded import read_sharded
from scaling.analysis.network.channel import Channel
from scaling.analysis.network.shared_link import Served
from scaling.settings.parallel import Mesh
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES

MS, STEPS, LATE_MS = 1_000_000, 4, 20.0
MESH = Mesh(replicate=2, tensor=2)
TOOK_MS = {"tensor": 5.0, "replicate": 10.0}
ALL_REDUCE, FORWARD, BACKWARD = KINDS.index("all_reduce"), PHASES.index("forward"), PHASES.index("backward")


def members(axis, rank):
    return next(group for group in MESH.axes()[axis] if rank in group)


def tables(late):
    """Steps in which each rank computes 3 ms (rank 1 longer), adds up its layers, then its gradients."""
    now, steps, rows = [1000.0] * 4, [], []
    for step in range(STEPS):
        begin, waits = list(now), [[0.0, 0.0] for _ in range(4)]
        now = [at + 3.0 + (late if rank == 1 else 0.0) for rank, at in enumerate(now)]
        for seq, (axis, phase) in enumerate((("tensor", FORWARD), ("replicate", BACKWARD))):
            came = list(now)
            for rank in range(4):
                now[rank] = max(came[r] for r in members(axis, rank)) + TOOK_MS[axis]
                waits[rank][phase == FORWARD] += now[rank] - came[rank]
                stamps = {
                    "ready_ns": came,
                    "launch_ns": came,
                    "wait_ns": came,
                    "start_ns": [0.0] * 4,
                    "done_ns": now,
                    "resume_ns": now,
                }
                row = {"launch": 0, "block": 1, "round": 0, "step": step, "rank": rank, "seq": seq}
                row |= {
                    "kind": ALL_REDUCE,
                    "phase": phase,
                    "unit": seq,
                    "bytes": 1000,
                    "group": MESH.keys()[axis],
                }
                row |= {name: round(at[rank] * MS) for name, at in stamps.items()}
                rows.append({**row, "arm": "probe", "detailed": True})
        for rank in range(4):
            row = {
                "launch": 0,
                "block": 1,
                "round": 0,
                "step": step,
                "rank": rank,
                "arm": "probe",
                "detailed": True,
            }
            row |= {"begin_ns": begin[rank] * MS}
            row |= dict.fromkeys(("end_ns", "sync_end_ns", "compute_end_ns"), now[rank] * MS)
            none = (
                "input_ns",
                "optimizer_ns",
                "backward_ns",
                "earlier_wait_ns",
                "buffer_wait_ns",
                "input_wait_ns",
                "optimizer_wait_ns",
                "host_wait_ns",
            )
            row |= dict.fromkeys(none, 0.0)
            row |= {"forward_wait_ns": waits[rank][1] * MS, "backward_wait_ns": waits[rank][0] * MS}
            steps.append(row)
    return pl.DataFrame(steps), pl.DataFrame(rows).lazy()


def waited(late):
    """Exposed skew and transfer of each communicator, mean over ranks, ms."""
    axes = {key: axis for axis, key in MESH.keys().items()}
    found = read_sharded(
        *tables(late),
        MESH,
        Served(
            channel=lambda keys, _kinds=(): Channel.of("gloo", keys, lambda _key: 0),
            groups=lambda rank, key: members(axes[key], rank),
        ),
    )
    merged = {name: values[0, 0] / MS for name, values in found.merged.items()}
    return {
        found.sent[places[0]].axis: (merged[f"kind.{k}.exposed_skew"], merged[f"kind.{k}.exposed_transfer"])
        for k, places in enumerate(by_kind(found.sent))
    }


def test_without_a_late_rank_nobody_waits_for_another():
    assert waited(0.0) == {"tensor": (0.0, 5.0), "replicate": (0.0, 10.0)}


def test_waits_within_the_tensor_group_stand_apart_from_those_among_replicas():
    found = waited(LATE_MS)
    # Of four ranks one waits for its neighbour; then the other replica's two wait for both.
    assert found["tensor"] == pytest.approx((LATE_MS / 4, TOOK_MS["tensor"]))
    assert found["replicate"] == pytest.approx((2 * LATE_MS / 4, TOOK_MS["replicate"]))
