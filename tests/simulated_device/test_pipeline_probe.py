"""A Probe around loops that run torch's pipeline schedules, where it is known what each rank waits for."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from scaling import Probe
from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder
from scaling.worker.models import synthetic
from scaling.worker.simulated.device import configure, line, set_link
from simulated_device import ranks

pytestmark = pytest.mark.slow

CHUNK_MS = 6.0
"""Forward and backward of a stage for one microbatch."""
SAMPLES, NUMBERS = 2, 4096
"""Of a microbatch, and what a sample has between two stages."""
STEPS = 45
FREE = (0.0, 1e6)
"""A link that costs nothing: latency in us, GB/s."""
BOUND = 0.03


def loop(rank, world, folder="", schedule="ScheduleGPipe", stages=1, microbatches=4, link=FREE, slower=1.0):
    """`stages`: of a rank. `slower`: how much longer the last rank's stages take."""
    from torch.distributed import pipelining

    configure(launch_us=1)
    set_link(line(*link))
    count = world * stages
    model = synthetic.build(0.01, count, CHUNK_MS * count, SAMPLES, NUMBERS).module.to("sim")
    mine = list(range(rank, count, world))
    for index in mine if rank == world - 1 else ():
        model[index].seconds_a_sample *= slower
    device = torch.device("sim", rank)
    parts = [pipelining.PipelineStage(model[index], index, count, device) for index in mine]
    taken = parts if schedule == "ScheduleInterleaved1F1B" else parts[0]
    turns = getattr(pipelining, schedule)(taken, microbatches, loss_fn=lambda output, _: output.mean())
    optimizer = torch.optim.SGD(
        [p for index in mine for p in model[index].parameters()], lr=0.1, foreach=False
    )
    inputs = torch.ones(microbatches * SAMPLES, NUMBERS, device="sim")
    target = torch.zeros(microbatches * SAMPLES, device="sim")
    with Probe(turns, run_dir=folder) as probe:
        for _ in range(STEPS):
            with probe.step():
                given = (inputs,) if rank == 0 else ()
                turns.step(*given, **({"target": target} if rank == world - 1 else {}))
                optimizer.step()
                optimizer.zero_grad()
    dist.barrier()


def taken(folder, world, **how):
    """The analysis of a loop."""
    ranks.run(loop, world, folder=str(folder), **how)
    return rebuild(RunFolder(folder)).analysis


SCHEDULES = (
    (2, {"schedule": "ScheduleGPipe"}),
    (2, {"schedule": "Schedule1F1B"}),
    (2, {"schedule": "ScheduleInterleaved1F1B", "stages": 2}),
    (4, {"schedule": "ScheduleGPipe", "microbatches": 8}),
    (4, {"schedule": "Schedule1F1B", "microbatches": 8}),
    (4, {"schedule": "ScheduleInterleaved1F1B", "stages": 2, "microbatches": 8}),
)


@pytest.mark.parametrize(("world", "how"), SCHEDULES)
def test_the_bubble_over_a_free_link_is_that_of_arithmetic(tmp_path, world, how):
    analysis = taken(tmp_path / "own", world, **how)
    (point,) = analysis.points
    stages, microbatches = how.get("stages", 1), how.get("microbatches", 4)
    computed = (world - 1) / (stages * microbatches + world - 1)
    found = point.pipeline
    assert (found.schedule, found.stages_per_rank, found.microbatches) == (
        how["schedule"],
        stages,
        microbatches,
    )
    assert found.computed_bubble == pytest.approx(computed)
    assert found.bubble.value == pytest.approx(computed, rel=BOUND)
    assert found.slowest_over_mean.value == pytest.approx(1, abs=0.01)
    assert (point.parallel.strategy, point.parallel.pipeline) == ("pp", world)
    whole = stages * microbatches * CHUNK_MS / (1 - computed)
    assert point.step_ms.value == pytest.approx(whole, rel=BOUND)
    assert point.parts_ms.exposed_transfer.value == pytest.approx(0, abs=0.005 * whole)
    assert point.loss.pipeline_bubble.value == pytest.approx(computed, rel=BOUND)
    assert point.samples_per_s.value == pytest.approx(microbatches * SAMPLES * 1e3 / whole, rel=BOUND)
    assert [v.cause for v in analysis.verdicts] == ["pipeline_bubble"]


def test_messages_are_counted_to_the_byte_and_the_rest_of_a_wait_is_the_links(tmp_path):
    latency_us, gb_s = 1000, 0.1
    point = taken(tmp_path / "own", 2, link=(latency_us, gb_s)).points[0]
    each = SAMPLES * NUMBERS * 4
    found = {(one.kind, one.phase): one for one in point.comm.collectives}
    assert {key: (one.calls, one.bytes, one.ranks) for key, one in found.items()} == {
        ("send", "forward"): (4, 4 * each, 2),
        ("recv", "forward"): (4, 4 * each, 2),
        ("send", "backward"): (4, 4 * each, 2),
        ("recv", "backward"): (4, 4 * each, 2),
    }
    assert point.comm.bytes_per_step == 4 * each
    # GPipe posts a receive when it needs the data, so that each of four microbatches waits for its way, forward on the
    # last rank and backward on the first one; and each rank waits for the last message that it sent itself.
    way_ms = latency_us / 1e3 + each / (gb_s * 1e6)
    waited = {key: one.exposed_transfer_ms.value for key, one in found.items()}
    for phase in ("forward", "backward"):
        assert waited["recv", phase] == pytest.approx(4 * way_ms / 2, rel=0.01)  # mean over two ranks
        assert waited["send", phase] == pytest.approx(way_ms / 2, rel=0.02)
    assert point.parts_ms.exposed_transfer.value == pytest.approx(5 * way_ms, rel=0.01)
    assert point.step_ms.value == pytest.approx((4 + 1) * CHUNK_MS + 8 * way_ms, rel=0.01)


def test_a_slower_stage_is_named_and_the_others_wait_for_it(tmp_path):
    analysis = taken(tmp_path / "own", 2, schedule="Schedule1F1B", slower=1.5)
    found = analysis.points[0].pipeline
    assert found.slowest_rank == 1
    assert found.slowest_over_mean.value == pytest.approx(1.5 / 1.25, rel=0.01)
    # 4 microbatches of the slower rank and one of the other: that rank waits for the other's one alone.
    first, last = 4 * CHUNK_MS, 4 * 1.5 * CHUNK_MS
    step = last + CHUNK_MS
    assert found.bubble.value == pytest.approx(1 - (first + last) / (2 * step), rel=BOUND)
    (bubble,) = (v for v in analysis.verdicts if v.cause == "pipeline_bubble")
    assert any("rank 1 computes 20% longer" in line for line in bubble.evidence)
