"""A sharded run at other meshes and links, from a source and lists of collectives whose times are known."""

from __future__ import annotations

import dataclasses

import pytest
from support.results import good, plan

from scaling.analysis.predict.mesh_links import Question
from scaling.analysis.predict.mesh_model import MeshModel
from scaling.analysis.predict.meshes import mesh_predictions
from scaling.analysis.predict.own_times import OwnTimes
from scaling.analysis.predict.units import UnitSource, alone_ms
from scaling.analysis.results import ArmTimes, Loss, Measured, Point
from scaling.spec.listing import Listed, ListedCollective, ListedMark
from scaling.spec.parallel import Fsdp, Parallel
from scaling.spec.run import WhatIf
from scaling.spec.topology import Link, Topology

MIB, MS = 2**20, 1e6
BYTE_NS = 20.0
"""8 / 20 ns: 0.4 Gbit/s on a link of 500 Mbit/s."""
FSDP, HSDP = Parallel(name="fsdp", replicate=1, shard=-1), Parallel(name="hsdp", replicate=-1, shard=2)
DDP, TP = Parallel(name="ddp"), Parallel(name="tp", replicate=1, tensor=-1)
FSDP_TP = Parallel(name="fsdp_tp", replicate=1, shard=-1, tensor=2)
OWN = OwnTimes(
    at={
        ("all_gather", "shard", "forward", 0, 0): (5 * MS, 5 * MS),
        ("reduce_scatter", "shard", "backward", 0, 0): (45 * MS, 45 * MS),
    },
    phases={"forward": 20 * MS, "backward": 20 * MS},
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


def listings(question, samples):
    """One unit of a MiB: gathered, reduced, summed over copies and over the ranks that divide it; the host waits."""
    mesh, part = question.mesh, MIB // question.mesh.tensor
    sent = []

    def add(kind, phase, axis, size):
        ranks = getattr(mesh, axis)
        if ranks > 1:
            sent.append(ListedCollective(kind=kind, phase=phase, unit=0, axis=axis, ranks=ranks, bytes=size))

    add("all_gather", "forward", "shard", part)
    if question.fsdp.reshard > 1:
        add("all_gather", "backward", "shard", part)
    add("all_reduce", "forward", "tensor", samples * SAMPLE)
    add("reduce_scatter", "backward", "shard", part)
    add("all_reduce", "backward", "replicate", part // mesh.shard)
    marks = [ListedMark(waits=waits, collective=k) for k in range(len(sent)) for waits in (False, True)]
    held = {
        "parameters": part // mesh.shard,
        "gradients": part // mesh.shard,
        "optimizer": 0,
        "unsharded": MIB,
    }
    return Listed(collectives=tuple(sent), marks=tuple(marks), memory=held)


SAMPLE = 2**15
"""Bytes of a sample that a divided layer sums, of 32 samples a rank."""


def source(n=2):
    """Two ranks: half of a MiB is gathered and half of one reduced."""
    step = 45 + 2 * MIB / 2 * BYTE_NS / MS
    return UnitSource(
        parallel=FSDP,
        world_size=n,
        step_ms=Measured(step, step - 1, step + 1, 12),
        bare_ms=Measured(45.0),
        own=OWN,
        moved_ns={(kind, True): BYTE_NS for kind in ("all_gather", "reduce_scatter", "all_reduce")},
        alpha_ns={(kind, True): 0.0 for kind in ("all_gather", "reduce_scatter", "all_reduce")},
    )


def question(spec, n, where, parallel, **fsdp):
    """What another mesh of `n` ranks on the machine `where` would do."""
    return WhatIf(
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
        fsdp=dataclasses.replace(spec.fsdp, **fsdp),
    )


def predicted(parallel=FSDP, n=2, where=None, sources=None, own=None, mode="weak", **fsdp):
    run = plan()
    spec = dataclasses.replace(
        run.spec, parallel=FSDP, topology=own or topology(), world_sizes=(2,), mode=mode
    )
    run = dataclasses.replace(run, spec=spec)
    where = where or topology(hosts=n)
    asked = question(spec, n, where, parallel, **fsdp)
    return mesh_predictions([source()] if sources is None else sources, run, good(), asked, listings)


def step_ms(moved, rate=1.0):
    """45 ms of its own, and so many MiB on the link at `rate` times the run's."""
    return 45 + moved * MIB * BYTE_NS / MS / rate


def test_what_was_measured_is_predicted_as_measured():
    (point,) = predicted().points
    assert (point.step_ms.value, point.step_ms.low) == pytest.approx((step_ms(1), step_ms(1) - 1))


def test_a_setting_of_fully_shard_that_changes_alone_is_predicted():
    """This program gathers again in backward where it keeps a part of a unit's parameters."""
    (point,) = predicted(reshard=2).points
    assert point.step_ms.value == pytest.approx(step_ms(1.5))
    (point,) = predicted(n=4, reshard=2).points
    assert point.step_ms.value == pytest.approx(step_ms(3 * 3 / 4))


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
    assert "its probe, light and detailed, and the link's size sweep" in point.cannot


INSIDE_NS = 1.0
TWO_BY_TWO = {"hosts": 2, "ranks_per_host": 2}
WIRES = {
    "hsdp": {("all_gather", False): INSIDE_NS, ("all_reduce", True): BYTE_NS},
    "fsdp_tp": {("all_reduce", False): INSIDE_NS, ("all_gather", True): BYTE_NS},
    "tp": {("all_reduce", True): BYTE_NS},
}


def own_at(tensor):
    """5 ms of the optimizer, then 40 of compute that its ranks divide, but for 4 that all of them do."""
    half = (36 / tensor + 4) / 2 * MS
    return OwnTimes(
        at={
            ("all_gather", "shard", "forward", 0, 0): (5 * MS, 5 * MS),
            ("all_reduce", "tensor", "forward", 0, 0): (5 * MS + half, 5 * MS + half),
            ("reduce_scatter", "shard", "backward", 0, 0): (5 * MS + 2 * half, 5 * MS + 2 * half),
        },
        phases={"forward": half, "backward": half},
    )


def truth_ms(parallel):
    """A step of four ranks on two hosts, by hand: compute, and every collective one after the other."""
    across, inside = BYTE_NS / MS, INSIDE_NS / MS
    summed = 32 * SAMPLE
    moved = {
        "ddp": 2 * 3 / 4 * MIB * across,
        "fsdp": (3 / 4 + 1) * MIB * across,  # a reduce-scatter sends two of four parts to two ranks each
        "hsdp": 2 * MIB / 2 * inside + 2 * (MIB / 2) * across,  # two pairs of copies at once
        "tp": 2 * 3 / 4 * summed * across,
        "fsdp_tp": summed * inside + 2 * 2 * (MIB / 2 / 2) * across,
        "hsdp_tp": summed * inside + 2 * (MIB / 2) * across,
    }
    return 5 + 36 / parallel.mesh(4).tensor + 4 + moved[parallel.name]


def measured_mesh(parallel):
    name = parallel.name
    step = truth_ms(parallel)
    return UnitSource(
        parallel=parallel,
        world_size=4,
        step_ms=Measured(step, step - 1, step + 1, 12),
        bare_ms=Measured(45.0),
        own=own_at(parallel.mesh(4).tensor),
        moved_ns=WIRES[name],
        alpha_ns=dict.fromkeys(WIRES[name], 0.0),
    )


@pytest.mark.parametrize("other", [FSDP_TP, TP], ids=["fsdp_tp", "tp"])
@pytest.mark.parametrize("name", ["ddp", "fsdp", "hsdp", "tp", "fsdp_tp", "hsdp_tp"])
def test_two_measured_meshes_predict_all_others(name, other):
    """One mesh with whole layers and one with divided ones, whose groups use both kinds of link."""
    parallel = Parallel.preset(name, 2)
    run, where = plan(), topology(**TWO_BY_TWO)
    run = dataclasses.replace(run, spec=dataclasses.replace(run.spec, parallel=HSDP, topology=where))
    both = [measured_mesh(HSDP), measured_mesh(other)]
    model = MeshModel(both, run, listings)
    question = Question(parallel=parallel, fsdp=Fsdp(), topology=where, mesh=parallel.mesh(4))
    start = model.start(question)
    found = start.step_ms.value * model.leans(start, question)[0][2]
    assert found == pytest.approx(truth_ms(parallel))


def test_what_a_point_is_made_from_is_said():
    run, where = plan(), topology(**TWO_BY_TWO)
    run = dataclasses.replace(run, spec=dataclasses.replace(run.spec, parallel=HSDP, topology=where))
    model = MeshModel([measured_mesh(HSDP), measured_mesh(FSDP_TP)], run, listings)
    question = Question(parallel=TP, fsdp=Fsdp(), topology=where, mesh=TP.mesh(4))
    said = " ".join(model.notes(model.start(question), question))
    assert "tp at 4: from fsdp_tp at 4" in said
    assert "it is a + b / degree through 1 and 2" in said
    one = MeshModel([measured_mesh(FSDP_TP)], run, listings)
    assert "taken to divide by 2" in " ".join(one.notes(one.start(question), question))


def test_divided_layers_do_the_work_of_one_rank_together():
    where = topology(**TWO_BY_TWO)
    (point,) = predicted(FSDP_TP, 4, where, [measured_mesh(FSDP_TP)], where).points
    assert point.efficiency.value == pytest.approx(45 / 2 / truth_ms(FSDP_TP))
    assert point.samples_per_s.value == pytest.approx(2 * 32 * 1e3 / truth_ms(FSDP_TP))


@pytest.mark.parametrize("parallel", [FSDP, FSDP_TP], ids=["fsdp", "fsdp_tp"])
def test_a_strong_run_is_predicted_with_the_efficiency_that_was_measured(parallel):
    """One rank takes 180 ms for the whole batch, so four have 45 each; it takes 60 for a quarter of it."""
    where, known = topology(**TWO_BY_TWO), measured_mesh(parallel if parallel.divided else HSDP)
    known = dataclasses.replace(known, parallel=parallel, step_ms=Measured(75.0))
    alone = Point(
        world_size=4,
        hosts=2,
        status="done",
        step_ms=known.step_ms,
        efficiency=Measured(180 / 4 / 75),
        arms_ms=ArmTimes(bare_one=Measured(60.0)),
        loss=Loss(),
    )
    mesh = parallel.mesh(4)
    known = dataclasses.replace(known, bare_ms=alone_ms(alone, "strong", mesh.tensor))
    (point,) = predicted(parallel, 4, where, [known], where, mode="strong").points
    assert point.step_ms.value == pytest.approx(75)
    assert point.efficiency.value == pytest.approx(0.6)
    over_several = dataclasses.replace(alone, loss=None)
    assert alone_ms(over_several, "strong", mesh.tensor) is None
    assert alone_ms(alone, "weak", mesh.tensor) == Measured(60.0)


def test_a_strong_run_says_where_the_batch_of_a_rank_would_be_another():
    run = plan()
    spec = dataclasses.replace(run.spec, parallel=FSDP, topology=topology(), mode="strong", global_batch=64)
    model = MeshModel([source()], dataclasses.replace(run, spec=spec), listings)
    question = Question(parallel=FSDP, fsdp=Fsdp(), topology=topology(hosts=4), mesh=FSDP.mesh(4))
    assert "another part of it over 4 ranks" in model.cannot(question, model.start(question))


def test_what_fully_shard_adds_is_taken_off_where_nothing_is_sharded():
    """Of the 40 ms that HSDP computes the bare model takes 30: so does DDP."""
    run, where = plan(), topology(**TWO_BY_TWO)
    run = dataclasses.replace(run, spec=dataclasses.replace(run.spec, parallel=HSDP, topology=where))
    known = measured_mesh(HSDP)
    own = dataclasses.replace(known.own, bare={"forward": 15 * MS, "backward": 15 * MS})
    model = MeshModel([dataclasses.replace(known, own=own)], run, listings)
    question = Question(parallel=DDP, fsdp=Fsdp(), topology=where, mesh=DDP.mesh(4))
    start = model.start(question)
    found = start.step_ms.value * model.leans(start, question)[0][2]
    assert found == pytest.approx(truth_ms(DDP) - 10)


def test_how_well_one_rank_alone_is_known_widens_the_efficiency():
    known = dataclasses.replace(source(), bare_ms=Measured(45.0, 36.0, 54.0, 12))
    (point,), (sure,) = (predicted(sources=[one]).points for one in (known, source()))
    assert point.efficiency.value == pytest.approx(sure.efficiency.value)
    assert point.efficiency.high >= sure.efficiency.value * 1.2
    assert sure.efficiency.value / 1.3 < point.efficiency.low <= sure.efficiency.value / 1.2
    assert sure.efficiency.high < sure.efficiency.value * 1.05


@pytest.mark.parametrize(
    ("parallel", "held"), [(FSDP_TP, 1), (TP, 1), (HSDP, 2)], ids=["as_measured", "more", "whole"]
)
def test_layers_that_are_divided_less_keep_more_activations(parallel, held):
    """What a tensor degree of 2 keeps may be half of what whole layers keep, and degree 4 may keep as much."""
    where = topology(**TWO_BY_TWO, accelerator="NVIDIA H100 80GB HBM3")
    run = plan()
    spec = dataclasses.replace(run.spec, parallel=FSDP_TP, topology=where, world_sizes=(4,))
    analysis = good()
    (point, *_) = analysis.points
    gib = 2**30
    memory = dataclasses.replace(point.memory, activations_bytes=45 * gib)
    point = dataclasses.replace(point, world_size=4, memory=memory)
    asked = question(spec, 4, where, parallel)
    found = mesh_predictions(
        [measured_mesh(FSDP_TP)],
        dataclasses.replace(run, spec=spec),
        dataclasses.replace(analysis, points=(point,)),
        asked,
        listings,
    )
    assert found.points[0].memory.activations_bytes == held * 45 * gib
    assert found.points[0].memory.fits == (held == 1)
