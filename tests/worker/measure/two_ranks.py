"""`two_ranks.py RANK STORE`: one of two Gloo ranks; prints what test_probe.py asks about as one JSON line."""

from __future__ import annotations

import functools
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import StepRow
from scaling.settings.schedule import Message
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.measure.exchange import Exchange
from scaling.worker.measure.probe import ReadyTimes, SoloProbe
from scaling.worker.parallel.ddp import BucketDetail, bucket_bytes, sends_buffers
from scaling.worker.parallel.groups import make_groups
from scaling.worker.parallel.strategy import done_in_time
from scaling.worker.parallel.tap import Tap
from scaling.worker.parallel.waits import Broadcasts

STEPS = 4
LATE_S = 0.1


class Hooked(Cpu):
    """Takes the ways that a CUDA device takes, with the host's clock."""

    type = "cuda"


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(10)])


def step(ddp, inputs):
    """Begin, end of forward, end; gradients are left."""
    ddp.zero_grad(set_to_none=True)
    begin = now_ns()
    loss = ddp(inputs).square().mean()
    forward_end = now_ns()
    loss.backward()
    return begin, forward_end, now_ns()


def observe(wrapper, inputs, rows_of):
    """The last of some steps: begin, end of forward and end, ns, and `rows_of(end of forward, end)`."""
    steps = []
    for _ in range(STEPS):
        begin, forward_end, end = step(wrapper, inputs)
        rows = rows_of(forward_end, end)
        steps.append({"begin": begin, "forward_end": forward_end, "end": end, "rows": rows})
    return steps[-1]


def bucket_rows(detail, take, forward_end, end):
    """The rows of a step as a block records them: none is done after backward, which waited for all."""
    rows = detail.all_of(take(forward_end).collectives, [(forward_end, end)], ())
    whole = StepRow(forward_end, end, 0, 0, end - forward_end, 0, compute_end_ns=end, sync_end_ns=end)
    return [done_in_time(row, whole) for row in rows]


def buffered(rank, group, inputs):
    """Stamps of the broadcasts of buffers, ns, in steps that rank 1 enters late, and in two that have none."""
    plain = DistributedDataParallel(model(), process_group=group)
    normed = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256))
    ddp = DistributedDataParallel(normed, process_group=group)
    for _ in range(2):
        # in the second one DDP makes its buckets anew, for which ranks wait before the broadcast
        step(ddp, inputs)
    waits, late = Broadcasts(Cpu()), []
    before = dist._broadcast_coalesced
    for _ in range(2):
        time.sleep(LATE_S * rank)
        with waits.on():
            step(ddp, inputs)
        late += [at for wait in waits.take() for at in (wait.begin, wait.end)]
    with ddp.no_sync():
        step(ddp, inputs)  # its forward still has the broadcast that the step before asked for
        with waits.on():
            step(ddp, inputs)
    return {
        "sends": [sends_buffers(ddp), sends_buffers(plain), sends_buffers(normed)],
        "late": late,
        "without": waits.take(),
        "put_back": dist._broadcast_coalesced is before,
    }


def main(rank: int) -> dict:
    groups = make_groups(
        {1: [(0,)], 2: [(0, 1)]}, rank=rank, world=2, backend="gloo", timeout=timedelta(seconds=60)
    )
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(16, 256, generator=generator)
    result = {"rank": rank, "same_group": groups[2].control is groups[2].data}

    plain = DistributedDataParallel(model(), process_group=groups[2].data, bucket_cap_mb=1)
    for _ in range(STEPS):
        step(plain, inputs)
    expected = [p.grad.clone() for p in plain.parameters()]
    result["buckets"] = bucket_bytes(plain)
    for name in ("host", "device"):
        ddp = DistributedDataParallel(model(), process_group=groups[2].data, bucket_cap_mb=1)
        ready = ReadyTimes(ddp).absolute_ns if name == "host" else None
        detail = BucketDetail(ddp, Tap(Cpu().clock), ready)
        with detail.taking() as take:
            result[name] = observe(ddp, inputs, functools.partial(bucket_rows, detail, take))
        result[f"{name}_close"] = all(
            torch.allclose(a, p.grad, rtol=1e-5, atol=1e-8)
            for a, p in zip(expected, ddp.parameters(), strict=True)
        )
    alone = DistributedDataParallel(model(), process_group=groups[1].data, bucket_cap_mb=1)
    for _ in range(STEPS):
        step(alone, inputs)
    for name, device in (("solo_host", Cpu()), ("solo_device", Hooked())):
        probe = SoloProbe(alone, device)
        with probe.taking() as take:
            # a rank that is taken off its core between DDP's reading and ours reads late by that
            for _ in range(5):
                result[name] = observe(
                    alone, inputs, lambda forward_end, _, take=take: take(forward_end).collectives
                )
                if result[name]["rows"][-1][4] <= result[name]["end"]:
                    break
        result[f"{name}_parameters"] = probe.parameters([result[name]["begin"]])
    result["hooks_left"] = sum(bool(p._post_accumulate_grad_hooks) for p in alone.parameters())

    result["buckets_at"] = {}
    for cap in (0.3, 2, 25):
        other = DistributedDataParallel(
            model(), process_group=groups[2].data, bucket_cap_mb=None if cap == 25 else cap
        )
        for _ in range(STEPS):
            step(other, inputs)
        result["buckets_at"][cap] = bucket_bytes(other)

    result["buffers"] = buffered(rank, groups[2].data, inputs)

    exchange = Exchange(Cpu())
    exchange.reserve(4096)
    result["exchange"] = exchange.run(groups[2], [Message(0, 1024), Message(0, 4096)])
    result["collectives"] = exchange.run(groups[2], [Message(kind, 4096) for kind in range(4)])
    return result


if __name__ == "__main__":
    as_rank(main)
