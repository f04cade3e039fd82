"""`tap_ranks.py RANK STORE`: one of two Gloo ranks; what a tap sees of each kind of training, told as JSON."""

from __future__ import annotations

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from scaling.settings.run import KINDS
from scaling.worker.accelerator.clock import HostClock
from scaling.worker.parallel.tap import Tap

WORLD, STEPS = 2, 3


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(3)])


class WithBuffers(torch.nn.Module):
    """Rows of 8 numbers through a batch norm; one parameter has no gradient."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = torch.nn.Linear(8, 8, bias=False), torch.nn.BatchNorm1d(8)
        self.unused = torch.nn.Parameter(torch.zeros(5))

    def forward(self, rows):
        return self.norm(self.linear(rows))


def ddp():
    return DistributedDataParallel(layers(), bucket_cap_mb=0.01)


def buffers():
    return DistributedDataParallel(WithBuffers(), find_unused_parameters=True)


def fsdp():
    module, mesh = layers(), init_device_mesh("cpu", (WORLD,))
    for layer in module:
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def trained(make, rank, tap):
    """Weights after a few steps, and what the tap saw in the last one."""
    module, generator = make(), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    width = 8 if make is buffers else 64
    rows = []
    for _ in range(STEPS):
        if tap:
            tap.take()
        module(torch.randn(4, width, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        rows = tap.take() if tap else []
    return [p.detach().clone() for p in module.parameters()], rows


def told(rows):
    return [
        {
            "kind": KINDS[one.kind],
            "bytes": one.bytes,
            "group": one.group.size(),
            "stamps": one.enqueue_ns <= one.launch < one.done,
            "waited": one.wait > 0 and one.resume >= one.done,
        }
        for one in rows
    ]


def by_hand(tap):
    """Calls of torch.distributed, synchronous and not, and a functional one."""
    values, parts = torch.ones(16), [torch.zeros(16) for _ in range(WORLD)]
    dist.all_reduce(values)
    dist.all_reduce(values, async_op=True).wait()
    dist.all_gather(parts, values)
    dist.reduce_scatter_tensor(torch.zeros(8), values)
    dist.all_to_all_single(torch.zeros(16), values)
    dist.broadcast(values, 0)
    dist.barrier()
    return told(tap.take())


def main(rank: int) -> dict:
    tap, found = Tap(HostClock()), {}
    for make in (ddp, buffers, fsdp):
        plain, _ = trained(make, rank, None)
        with tap.on():
            weights, rows = trained(make, rank, tap)
        same = all(torch.equal(a, b) for a, b in zip(plain, weights, strict=True))
        found[make.__name__] = {"same": same, "rows": told(rows)}
    with tap.on():
        found["by_hand"] = by_hand(tap)
    dist.all_reduce(torch.ones(1))
    found["after"] = len(tap.take())
    found["left"] = "BackendSelect" in torch._C._dispatch_dump("c10d::allreduce_")
    return found


if __name__ == "__main__":
    as_rank(main)
