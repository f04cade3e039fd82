"""SyncBatchNorm, which torch refuses on a CPU: its collectives are seen, and a late rank in them."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling_simulator import trace
from scaling_simulator.device import line, link_ns, set_link, sleep_us
from simulated_device import ranks

pytestmark = pytest.mark.slow
MS = 1_000_000


def synchronised(rank, world, late_us=0.0):
    set_link(line(500, 1))
    torch.manual_seed(0)
    reference = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    )
    net = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference)).to("sim")
    net = DistributedDataParallel(net, device_ids=[rank])
    data = torch.randn(world * 4, 3, 8, 8)
    mine = data[4 * rank : 4 * rank + 4].to("sim")
    dist.barrier()
    torch.accelerator.synchronize()
    with trace.recorded() as tasks:
        if rank == 1 and late_us:
            sleep_us(late_us)
        net(mine).pow(2).mean().backward()
    reference(data).pow(2).mean().backward()
    pairs = zip(net.module.parameters(), reference.parameters(), strict=True)
    off = max(float((a.grad.cpu() - b.grad).abs().max()) for a, b in pairs)
    buffers = zip(net.module.buffers(), reference.buffers(), strict=True)
    running = max(float((a.cpu() - b).abs().max()) for a, b in buffers)
    gathers, reduces = trace.of(tasks, "all_gather"), trace.of(tasks, "all_reduce")
    exact = [t.transfer_ns - link_ns(t.kind, t.bytes, world) for t in (*gathers, *reduces)]
    return off, running, exact, len(gathers), gathers[0].wait_ns


def test_gradients_and_statistics_are_those_of_the_whole_batch():
    for off, running, exact, gathers, _ in ranks.run(synchronised, 2):
        assert off < 1e-6
        assert running < 1e-5
        assert gathers == 1
        assert set(exact) == {0}


def test_the_others_wait_for_a_late_rank_in_the_forward():
    early, late = ranks.run(synchronised, 2, late_us=50_000)
    assert (early[-1], late[-1]) == (50 * MS, 0)
