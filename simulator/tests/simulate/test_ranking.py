"""Meshes of one world size in order, with the reason that the next is slower."""

import pytest

from scaling.analysis.results.measured import Measured
from scaling_simulator.simulate.ranking import ranked, slower_by
from scaling_simulator.simulate.results import SimulatedPoint, SimulatedTransfers, SimulationResults


def transfers(kind, axis, exposed_ms):
    return SimulatedTransfers(
        kind=kind, axis=axis, calls=1, bytes=1, busy_ms=exposed_ms, exposed_ms=exposed_ms
    )


def simulated(
    strategy, step_ms, *, replicate=1, shard=1, tensor=1, off=0.01, compute_ms=50.0, sent=(), **more
):
    samples = 4 * replicate * shard
    rate = samples / step_ms * 1e3
    return SimulatedPoint(
        world_size=8,
        hosts=1,
        strategy=strategy,
        replicate=replicate,
        shard=shard,
        tensor=tensor,
        batch=4,
        status="simulated",
        fits=True,
        step_ms=Measured(step_ms, step_ms * (1 - off), step_ms * (1 + off)),
        samples_per_s=Measured(rate, rate * (1 - off), rate * (1 + off)),
        compute_ms=compute_ms,
        exposed_ms=sum(one.exposed_ms for one in sent),
        idle_ms=0.0,
        transfers=tuple(sent),
        **more,
    )


def results(point):
    return SimulationResults(
        simulated=True,
        model="gpt2",
        parameters=1,
        precision="bf16",
        topology="hgx_h100",
        accelerator="H100",
        mode="weak",
        changes=(),
        run=None,
        base_world_size=1,
        upper_bound=True,
        points=(point,),
        inputs=(),
        missing=(),
        warnings=(),
        backtest=(),
        backtest_missing="no run",
    )


def test_meshes_are_ranked_for_the_same_samples():
    """Eight ranks of tensor parallel take a short step, with an eighth of the samples."""
    ddp = simulated("ddp", 60.0, replicate=8, sent=[transfers("all_reduce", "replicate", 10.0)])
    tp = simulated("tp", 10.0, tensor=8, compute_ms=6.0, sent=[transfers("all_reduce", "tensor", 4.0)])
    found = ranked([results(tp), results(ddp)])
    assert [one.strategy for one in found.ranked] == ["ddp", "tp"]
    assert found.ranked[1].over_first == pytest.approx((4 / 10) / (32 / 60))
    # For 32 samples tp waits 8 x 4 ms, and computes 48 ms.
    assert found.ranked[1].slower_by == "waits longer for all-reduce over tensor, 32 ms a step's samples"


def test_ranges_that_meet_are_not_apart():
    one, near = simulated("ddp", 60.0, replicate=8), simulated("fsdp", 61.0, shard=8, compute_ms=51.0)
    far = simulated("hsdp", 70.0, replicate=4, shard=2, compute_ms=60.0)
    found = ranked(list(map(results, (far, one, near))))
    assert [(m.strategy, m.apart) for m in found.ranked] == [("ddp", False), ("fsdp", False), ("hsdp", True)]


def test_a_mesh_without_a_step_is_left_out_with_the_reason():
    gone = simulated("ddp", 60.0, replicate=8)
    oom = SimulatedPoint(
        world_size=8,
        hosts=1,
        strategy="ddp",
        replicate=8,
        shard=1,
        tensor=1,
        batch=4,
        status="oom",
        fits=False,
    )
    found = ranked([results(oom), results(gone)])
    assert [one.why for one in found.left_out] == ["does not fit into memory"]
    assert len(found.ranked) == 1


def test_a_reason_is_given_only_where_something_grows():
    assert slower_by(simulated("ddp", 60.0, replicate=8), simulated("fsdp", 60.0, shard=8)) is None
