"""A sharded run at other meshes and links, from a source and lists of collectives whose times are known."""

from __future__ import annotations

import dataclasses

import pytest
from support.results import good, plan

from scaling.analysis.predict.meshes import mesh_predictions
from scaling.analysis.predict.units import OwnTimes, UnitSource
from scaling.analysis.results import Measured
from scaling.spec.listing import Listed, ListedCollective, ListedMark
from scaling.spec.parallel import Parallel
from scaling.spec.run import WhatIf
from scaling.spec.topology import Link, Topology

MIB, MS = 2**20, 1e6
BYTE_NS = 20.0
"""8 / 20 ns: 0.4 Gbit/s on a link of 500 Mbit/s."""
FSDP, HSDP = Parallel(name="fsdp", replicate=1, shard=-1), Parallel(name="hsdp", replicate=-1, shard=2)
OWN = OwnTimes(
    at={
        ("all_gather", "forward", 0, 0): (5 * MS, 5 * MS),
        ("reduce_scatter", "backward", 0, 0): (45 * MS, 45 * MS),
    }
)


def topology(hosts=2, rate=500e6, **changes):
    found = Topology(
        name="emulated_pcie",
        kind="emulated",
        hosts=hosts,
        ranks_per_host=1,
        device="cpu",
        backend="gloo",
        link=Link(rate_bit_s=rate),
    )
    return dataclasses.replace(found, **changes)


def listings(parallel, mesh, _topology):
    """One unit of a MiB: gathered, reduced, and summed over copies where there are any; the host waits each time."""
    sent = [
        ListedCollective(
            kind="all_gather", phase="forward", unit=0, axis="shard", ranks=mesh.shard, bytes=MIB
        ),
        ListedCollective(
            kind="reduce_scatter", phase="backward", unit=0, axis="shard", ranks=mesh.shard, bytes=MIB
        ),
    ]
    if mesh.replicate > 1:
        sent.append(
            ListedCollective(
                kind="all_reduce",
                phase="backward",
                unit=0,
                axis="replicate",
                ranks=mesh.replicate,
                bytes=MIB // mesh.shard,
            )
        )
    marks = [ListedMark(waits=waits, collective=k) for k in range(len(sent)) for waits in (False, True)]
    held = {"parameters": MIB // mesh.shard, "gradients": MIB // mesh.shard, "optimizer": 0, "unsharded": MIB}
    return Listed(collectives=tuple(sent), marks=tuple(marks), memory=held)


def source(n=2):
    """Two ranks: half of a MiB is gathered and half of one reduced."""
    step = 45 + 2 * MIB / 2 * BYTE_NS / MS
    return UnitSource(
        world_size=n,
        step_ms=Measured(step, step - 1, step + 1, 12),
        bare_ms=Measured(45.0),
        own=OWN,
        moved_ns={"all_gather": BYTE_NS, "reduce_scatter": BYTE_NS, "all_reduce": BYTE_NS},
        alpha_ns=0.0,
    )


def predicted(parallel=FSDP, n=2, where=None, sources=None):
    run = plan()
    spec = dataclasses.replace(run.spec, parallel=FSDP, topology=topology(), world_sizes=(2,))
    run = dataclasses.replace(run, spec=spec)
    where = where or topology(hosts=n)
    asked = WhatIf(
        changes=(),
        world_sizes=(n,),
        topology=where,
        elsewhere=where != spec.topology,
        bucket_cap_mb=None,
        accumulation=None,
        batch_per_rank=32,
        global_batch=64,
        compute_scale=1.0,
        compression=1.0,
        without_straggler=False,
        parallel=parallel,
        fsdp=spec.fsdp,
    )
    return mesh_predictions([source()] if sources is None else sources, run, good(), asked, listings)


def step_ms(moved, rate=1.0):
    """45 ms of its own, and so many MiB on the link at `rate` times the run's."""
    return 45 + moved * MIB * BYTE_NS / MS / rate


def test_what_was_measured_is_predicted_as_measured():
    (point,) = predicted().points
    assert (point.step_ms.value, point.step_ms.low) == pytest.approx((step_ms(1), step_ms(1) - 1))


@pytest.mark.parametrize(
    ("parallel", "n", "moved"),
    [(FSDP, 4, 2 * 3 / 4), (HSDP, 4, 2 * 1 / 2 + 1 / 2), (HSDP, 8, 2 * 1 / 2 + 2 * 3 / 4 / 2)],
)
def test_other_meshes_send_what_torch_lists(parallel, n, moved):
    (point,) = predicted(parallel, n).points
    assert point.step_ms.value == pytest.approx(step_ms(moved))
    assert point.efficiency.value == pytest.approx(45 / step_ms(moved))
    assert point.step_ms.low < point.step_ms.value - 1  # bandwidth, latency and compute may differ
    assert point.parallel.shard == (4 if parallel == FSDP else 2)


def test_a_link_of_half_the_rate_takes_twice_as_long():
    (point,) = predicted(where=topology(rate=250e6)).points
    assert point.step_ms.value == pytest.approx(step_ms(1, rate=0.5))


def test_ranks_of_a_host_share_its_link_where_their_groups_leave_it():
    """Two hosts of two ranks, with copies across hosts: the links within are the topology's, two groups leave each."""
    where = topology(ranks_per_host=2)
    (point,) = predicted(HSDP, 4, where).points
    assert point.step_ms is None
    assert "how fast they are joined there is not known" in point.cannot


def test_memory_is_the_meshs_and_fits_where_the_device_is_known():
    (point,) = predicted(HSDP, 4).points
    assert (point.memory.parameters_bytes, point.memory.unsharded_bytes) == (MIB // 2, MIB)
    assert point.memory.fits is None
    known = topology(hosts=4, accelerator="NVIDIA H100 80GB HBM3")
    (point,) = predicted(HSDP, 4, known).points
    assert point.memory.fits


def test_every_measured_world_size_is_predicted_from_the_others():
    four = dataclasses.replace(source(), world_size=4, step_ms=Measured(100.0, 99.0, 101.0, 12))
    found = predicted(n=2, sources=[source(), four])
    errors = {test.world_size: test.error for test in found.backtest}
    assert errors[4] == pytest.approx(step_ms(2 * 3 / 4) / 100 - 1)
    assert found.backtest_missing is None


def test_without_a_source_it_says_what_is_missing():
    (point,) = predicted(sources=[]).points
    assert "the strategy over one rank" in point.cannot
