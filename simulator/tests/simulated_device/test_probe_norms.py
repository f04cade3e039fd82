"""A Probe around loops with SyncBatchNorm on accelerators whose times are known: where it waits, and for whom."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe
from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder
from scaling_simulator.device import configure, line, set_cost, set_link, sleep_us
from simulated_device import ranks

pytestmark = pytest.mark.slow
LATENCY_US, GB_S = 100, 1
COST_US, LATE_MS = 3000, 12
STEPS, LAYERS, WIDTH = 45, 3, 64
GATHERED = 4 * (2 * WIDTH + 1)
"""A rank's means, deviations and count."""


class Late(nn.Module):
    """Holds rank 1's stream before the first layer."""

    def __init__(self, us):
        super().__init__()
        self.us = us

    def forward(self, x):
        if dist.get_rank() == 1 and self.us:
            sleep_us(self.us)
        return x


def loop(rank, world, folder="", late_ms=0, micro_steps=1, logs=False):
    configure(launch_us=1)
    set_link(line(LATENCY_US, GB_S))
    set_cost(COST_US, "aten::mm", "aten::addmm")
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SyncBatchNorm(WIDTH)) for _ in range(LAYERS)]
    net = DistributedDataParallel(nn.Sequential(Late(1000 * late_ms), *layers).to("sim"), device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inputs = torch.randn(8, WIDTH, device="sim")
    with Probe(net, run_dir=folder) as probe:
        for _ in range(STEPS):
            with probe.step():
                for last in [False] * (micro_steps - 1) + [True]:
                    with contextlib.nullcontext() if last else net.no_sync():
                        loss = net(inputs).square().mean()
                        loss.backward()
                if logs:
                    dist.all_reduce(loss.detach())
                optimizer.step()
                optimizer.zero_grad()
    dist.barrier()
    return sum(p.numel() * p.element_size() for p in net.parameters())


def taken(folder, **how):
    """The point of a loop over two ranks, its warnings, and the bytes of the model."""
    (size, _) = ranks.run(loop, 2, folder=str(folder), **how)
    analysis = rebuild(RunFolder(folder)).analysis
    return analysis.points[0], analysis.quality.warnings, size


def kinds(point):
    return {(one.kind, one.phase): one for one in point.comm.collectives}


@pytest.mark.parametrize("micro_steps", [1, 3])
def test_its_collectives_are_transfers_of_the_link_in_every_micro_step(tmp_path, micro_steps):
    point, warnings, size = taken(tmp_path / "own", micro_steps=micro_steps)
    gathers, sums = (kinds(point)[key] for key in (("all_gather", "forward"), ("all_reduce", "backward")))
    calls = micro_steps * LAYERS
    assert (gathers.calls, gathers.bytes) == (calls, calls * 2 * GATHERED)
    known = calls * (LATENCY_US + GATHERED / 1e3 / GB_S) / 1e3  # a rank receives the other one's
    assert gathers.transfer_ms.value == pytest.approx(known, abs=1e-3)
    assert gathers.exposed_transfer_ms.value == pytest.approx(known, abs=1e-3)
    assert sums.bytes == size + calls * 2 * WIDTH * 4  # the buckets once, and two sums a channel
    assert sums.transfer_ms.value == pytest.approx(
        (sums.calls * LATENCY_US + sums.bytes / 1e3 / GB_S) / 1e3, abs=0.01
    )
    assert point.parts_ms.exposed_skew.value == pytest.approx(0, abs=0.01)
    assert point.straggler is None
    parts = [getattr(point.parts_ms, name) for name in point.parts_ms.__dataclass_fields__]
    assert sum(part.value for part in parts if part) == pytest.approx(point.step_ms.value, rel=0.01)
    assert not any("other than the model's own" in said for said in warnings)


@pytest.mark.parametrize("micro_steps", [1, 3])
def test_a_rank_that_is_late_for_the_first_one_is_found(tmp_path, micro_steps):
    point, _, _ = taken(tmp_path / "own", late_ms=LATE_MS, micro_steps=micro_steps)
    cost = micro_steps * LATE_MS
    assert (point.straggler.rank, point.straggler.phase) == (1, "forward")
    assert point.straggler.cost_ms.value == pytest.approx(cost, rel=0.02)
    gathers = kinds(point)["all_gather", "forward"]
    assert gathers.exposed_skew_ms.value == pytest.approx(cost / 2, rel=0.02)  # mean of both ranks
    assert point.parts_ms.exposed_skew.value == pytest.approx(cost / 2, rel=0.02)


def test_what_the_loop_sends_itself_is_none_of_its_collectives(tmp_path):
    point, warnings, _ = taken(tmp_path / "own", logs=True)
    assert kinds(point)["all_gather", "forward"].calls == LAYERS
    assert any("a step has 1 collective other than the model's own" in said for said in warnings)
