"""`collective_ranks.py RANK STORE WORLD [BYTES]`: a Gloo rank; what collectives made of messages do, as JSON.

With BYTES only how long those of that size take, s.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank

from scaling.settings.run import KINDS
from scaling.worker.accelerator.clock import HostClock
from scaling.worker.parallel.collectives import all_gather, gather_in_rings, reduce_scatter
from scaling.worker.parallel.tap import Tap

ITEMS, TIMES, ENDS_S = 3_000, 8, 20.0


def data(rank, items, dtype=torch.float32):
    return torch.randn(items, generator=torch.Generator().manual_seed(rank)).to(dtype)


def gathered(group, ranks, place, dtype, *, inside):
    """Whether a rank has every rank's part; `inside`: its own is where it belongs from the start."""
    n = len(ranks)
    whole = torch.zeros(n * ITEMS, dtype=dtype)
    part = data(ranks[place], ITEMS, dtype)
    if inside:
        whole.view(n, -1)[place] = part
        part = whole.view(n, -1)[place]
    all_gather(whole, part, group)
    return torch.equal(whole, torch.cat([data(rank, ITEMS, dtype) for rank in ranks]))


def reduced(group, ranks, place, *, mean):
    n = len(ranks)
    output = torch.empty(ITEMS)
    reduce_scatter(output, data(ranks[place], n * ITEMS), group, mean=mean)
    summed = torch.stack([data(rank, n * ITEMS) for rank in ranks]).sum(0).view(n, -1)[place]
    return torch.equal(output, summed / n if mean else summed)


def at_once(group, ranks, place):
    """Several on their way, waited for in another order, between the ends of a message of somebody else's."""
    n, peer = len(ranks), (place + 1) % len(ranks)
    wholes = [torch.empty(n * ITEMS) for _ in range(3)]
    sent, received = data(100 + place, 7), torch.empty(7)
    own = [group.send([sent], peer, 0)] if place == 0 else []
    works = [
        all_gather(whole, data(10 * k + ranks[place], ITEMS), group, async_op=True)
        for k, whole in enumerate(wholes)
    ]
    output = torch.empty(ITEMS)
    reduce_scatter(output, data(ranks[place], n * ITEMS), group)
    own += [group.recv([received], 0, 0)] if place == 1 else []
    for work in (*works[::-1], *works, *own):  # a second wait finds it ended
        work.wait()
    right = [
        torch.equal(whole, torch.cat([data(10 * k + rank, ITEMS) for rank in ranks]))
        for k, whole in enumerate(wholes)
    ]
    summed = torch.stack([data(rank, n * ITEMS) for rank in ranks]).sum(0).view(n, -1)[place]
    return all(right) and torch.equal(output, summed) and (place != 1 or torch.equal(received, data(100, 7)))


def noted(group, n, place):
    """What a tap notes of one of each, and of one that nobody waits for before it has ended."""
    whole, part, output = torch.zeros(n * ITEMS), torch.zeros(ITEMS), torch.empty(ITEMS)
    tap = Tap(HostClock())
    with tap.on():
        all_gather(whole, part, group)
        reduce_scatter(output, whole, group)
        work = all_gather(whole, part, group, async_op=True)
        rows, since = tap.take(), time.monotonic()
        while not rows[-1].done and time.monotonic() < since + ENDS_S:
            time.sleep(0.001)
        work.wait()
    reduce_scatter(output, whole, group)
    return {
        "left": len(tap.take()),
        "place": place,
        "rows": [
            {
                "kind": KINDS[one.kind],
                "bytes": one.bytes,
                "stamps": one.enqueue_ns <= one.launch < one.done,
                "waited": one.wait > 0 and one.resume >= one.done,
                "work": isinstance(work, dist.Work),
            }
            for one in rows
        ],
    }


def took_s(call):
    dist.barrier()
    begin = time.monotonic()
    call()
    dist.barrier()
    return time.monotonic() - begin


def timed(world, size):
    """The shortest of a few; the first ones also pay for what TCP learns."""
    whole = torch.zeros(size // 4)
    part = torch.zeros(size // 4 // world)
    calls = {
        "reduce_scatter": lambda: reduce_scatter(part, whole, dist.group.WORLD),
        "all_gather": lambda: all_gather(whole, part, dist.group.WORLD),
        "behind": lambda: all_gather(whole, part, dist.group.WORLD, async_op=True).wait(),
    }
    found = {name: min(took_s(call) for _ in range(TIMES)) for name, call in calls.items()}
    ends = [overlapped(whole, part) for _ in range(TIMES)]
    return found | {"first": min(first for first, _ in ends), "second": min(second for _, second in ends)}


def overlapped(whole, part):
    """How long an all-gather takes with a reduce-scatter begun behind it, and this one from there on, s."""
    dist.barrier()
    begin, ended = time.monotonic(), []
    work = all_gather(whole, part, dist.group.WORLD, async_op=True)
    work.get_future().add_done_callback(lambda _: ended.append(time.monotonic()))
    reduce_scatter(torch.empty_like(part), torch.zeros_like(whole), dist.group.WORLD)
    end = time.monotonic()
    work.wait()
    dist.barrier()
    return ended[0] - begin, end - ended[0]


def main(rank: int, world: str, size: str = "") -> dict:
    world = int(world)
    if size:
        return timed(world, int(size))
    found = {}
    # Of more than two ranks, also pairs whose places in the group are not their ranks.
    halves = [tuple(range(first, world, world // 2)) for first in range(world // 2)] if world > 2 else []
    everybody = tuple(range(world))
    groups = [(everybody, str(world), False), *((ranks, "2", False) for ranks in halves)]
    for ranks, name, shares in [*groups, (everybody, "ring", True)]:
        group = dist.new_group(list(ranks))
        if rank not in ranks:
            continue
        if shares:  # two ranks a host
            gather_in_rings(group, [one // 2 for one in ranks])
        place = ranks.index(rank)
        found[name] = {
            "gathered": [
                gathered(group, ranks, place, dtype, inside=inside)
                for dtype in (torch.float32, torch.bfloat16)
                for inside in (True, False)
            ],
            "reduced": [reduced(group, ranks, place, mean=mean) for mean in (True, False)],
            "at_once": at_once(group, ranks, place),
            **noted(group, len(ranks), place),
        }
    return found


if __name__ == "__main__":
    as_rank(main, world_size=int(sys.argv[3]))
