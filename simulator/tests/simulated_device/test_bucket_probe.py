"""The stamps of DDP's buckets on a back end that reduces in the order of the devices' streams."""

import pytest

from simulated_device import ranks

CLOSE_NS = 1_000
WAIT_US = 30
"""From an event to a stream that waited for it: no part of a transfer."""


@pytest.fixture(scope="module")
def probed():
    return ranks.run(_probed, 2)


def _probed(rank, world):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from scaling.worker.accelerator.clock import resolve_collective
    from scaling.worker.parallel.ddp import BucketDetail
    from scaling.worker.parallel.streams import find
    from scaling.worker.parallel.tap import Tap
    from scaling_simulator.accelerator import SimulatedAccelerator
    from scaling_simulator.device import configure, line, link_ns, set_cost, set_link

    configure(launch_us=2, wait_us=WAIT_US)
    set_link(line(latency_us=20, gb_s=2))
    set_cost(300, "aten::mm", "aten::addmm")
    device = SimulatedAccelerator(rank)
    torch.manual_seed(0)
    module = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)]).to(device.torch_device)
    ddp = DistributedDataParallel(module, bucket_cap_mb=0.3, gradient_as_bucket_view=True)
    find([dist.group.WORLD], device)
    inputs = torch.ones(8, 256, device=device.torch_device) * (rank + 1)
    for _ in range(3):
        ddp.zero_grad(set_to_none=True)
        with BucketDetail(ddp, Tap(device.clock)).taking() as take, device.clock.window(60):
            loss = ddp(inputs).sum()
            loss.backward()
            rows = take(0).collectives
    found = [resolve_collective(device.clock, row)._asdict() for row in rows]
    gradient = module[0].bias.grad.cpu().tolist()
    alone = torch.autograd.grad(module(inputs).sum(), module[0].bias)[0].cpu().tolist()
    wire = [link_ns("all_reduce", row["bytes"], world) for row in found]
    return {"rows": found, "wire_ns": wire, "mean": gradient, "own": alone}


def test_a_bucket_is_done_when_the_wire_is_through_with_it_and_the_one_before(probed):
    """First in, first out: from when the latest rank's stream comes to it, which is behind the one before."""
    before = 0
    first, second = (found["rows"] for found in probed)
    assert len(first) == len(second) > 2
    for one, other, wire_ns in zip(first, second, probed[0]["wire_ns"], strict=True):
        begin = max(one["start_ns"], other["start_ns"])
        assert begin >= before
        assert one["done_ns"] - begin == pytest.approx(wire_ns, abs=CLOSE_NS)
        assert other["done_ns"] == pytest.approx(one["done_ns"], abs=CLOSE_NS)
        before = one["done_ns"]


def test_a_bucket_is_ready_when_it_is_launched_behind_its_gradients(probed):
    for found in probed:
        rows = found["rows"]
        assert all(row["ready_ns"] == row["launch_ns"] for row in rows)
        assert all(row["enqueue_ns"] > 0 for row in rows)  # a step that waits for its launches shows by it
        launches = [row["launch_ns"] for row in rows]
        assert launches == sorted(launches)


def test_the_sum_becomes_the_mean(probed):
    first, second = probed
    mean = [(a + b) / 2 for a, b in zip(first["own"], second["own"], strict=True)]
    assert first["mean"] == pytest.approx(mean, rel=1e-5)
    assert second["mean"] == pytest.approx(mean, rel=1e-5)
