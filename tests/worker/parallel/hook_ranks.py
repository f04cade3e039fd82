"""`hook_ranks.py RANK STORE HOOK...`: one of three Gloo ranks; trains twice with each, plain and probed."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.measure.probe import ReadyTimes
from scaling.worker.parallel.ddp import BucketDetail, bucket_bytes, register
from scaling.worker.parallel.groups import make_groups
from scaling.worker.parallel.tap import Tap

STEPS, WORLD = 8, 3


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)])


def train(ddp, rank, take=None):
    """Losses of a few steps, weights after them, rows of the last one."""
    generator = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    losses, rows = [], []
    for _ in range(STEPS):
        loss = ddp(torch.randn(16, 128, generator=generator)).square().mean()
        forward_end = now_ns()
        loss.backward()
        rows = take(forward_end) if take else []
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in ddp.parameters()], rows


def compare(hook, group, rank):
    """The plain wrapper's training beside the probe's, and what that stamped."""
    plain = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.1)
    register(plain, hook, group)
    losses, weights, _ = train(plain, rank)
    probed = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.1)
    register(probed, hook, group)
    detail = BucketDetail(probed, Tap(Cpu().clock), ReadyTimes(probed).absolute_ns)
    with detail.taking() as take:
        again, others, rows = train(probed, rank, lambda at: take(at).collectives)
    return {
        "losses": losses,
        "same_losses": losses == again,
        "same_weights": all(torch.equal(a, b) for a, b in zip(weights, others, strict=True)),
        "sum": sum(float(w.double().sum()) for w in weights),
        "buckets": bucket_bytes(probed),
        "wire": [message.bytes for message in detail.wire],
        "rows": rows,
    }


def main(rank: int, store: str, hooks: list[str]) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=timeout
    )
    parts = {WORLD: [tuple(range(WORLD))]}
    group = make_groups(parts, rank=rank, world=WORLD, backend="gloo", timeout=timeout)[WORLD].data
    found = {hook: compare(hook, group, rank) for hook in hooks}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
