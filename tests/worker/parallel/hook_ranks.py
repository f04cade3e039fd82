"""`hook_ranks.py RANK STORE HOOK...`: one of three Gloo ranks; trains twice with each, plain and probed."""

from __future__ import annotations

from datetime import timedelta

import torch
from support.gloo_ranks import as_rank
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


def main(rank: int, *hooks: str) -> dict:
    parts = {WORLD: [tuple(range(WORLD))]}
    timeout = timedelta(seconds=60)
    group = make_groups(parts, rank=rank, world=WORLD, backend="gloo", timeout=timeout)[WORLD].data
    return {hook: compare(hook, group, rank) for hook in hooks}


if __name__ == "__main__":
    as_rank(main, world_size=WORLD)
