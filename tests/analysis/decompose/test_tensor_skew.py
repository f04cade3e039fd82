"""A rank that is late: its tensor group waits for it first, and then the replicas wait for the group."""

import polars as pl
import pytest
from support.unit_steps import MS, sent_row, served, step_row

from scaling.analysis.decompose.quantities import by_kind
from scaling.analysis.decompose.sharded import read_sharded
from scaling.settings.parallel import Mesh
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES

STEPS, LATE_MS = 4, 20.0
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
                what = {"seq": seq, "kind": ALL_REDUCE, "phase": phase, "unit": seq, "bytes": 1000}
                what["group"] = MESH.keys()[axis]
                rows.append(sent_row(step, rank, what, (came[rank], now[rank]) * 2))
        for rank, (backward, forward) in enumerate(waits):
            steps.append(step_row(step, rank, begin[rank], now[rank], forward=forward, backward=backward))
    return pl.DataFrame(steps), pl.DataFrame(rows).lazy()


def waited(late):
    """Exposed skew and transfer of each communicator, mean over ranks, ms."""
    axes = {key: axis for axis, key in MESH.keys().items()}
    by_axis = served("gloo", groups=lambda rank, key: members(axes[key], rank))
    found = read_sharded(*tables(late), MESH, by_axis)
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
