"""Measure what a tap costs a collective: while it is open, and after it was closed.

One Gloo rank reduces 64 bytes over itself, so that nothing but the call counts: processor time of the calling thread,
which other programs disturb less than its wall time. The three cases run in random order; `again` is the untapped case
once more (A/A). Bars: closed within the A/A's spread, 0.5 us at least; open at most 50 us a collective. The last line
is the result.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import tempfile
import time

import harness
from ending import exit_with

ROUNDS, CALLS = 40, 400
BAR_OPEN_US, RESOLUTION_US = 50.0, 0.5


def main() -> int:
    import torch
    import torch.distributed as dist

    from scaling.worker.accelerator.clock import HostClock
    from scaling.worker.parallel.tap import Tap

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        tensor, tap = torch.zeros(16), Tap(HostClock())

        def each_us() -> float:
            begin = time.thread_time()
            for _ in range(CALLS):
                dist.all_reduce(tensor)
            return (time.thread_time() - begin) / CALLS * 1e6

        each_us()
        before = [each_us() for _ in range(ROUNDS)]  # no tap has been open in this process
        rounds: dict[str, list[float]] = {"closed": [], "again": [], "open": []}
        order, draw = list(rounds), random.Random(0)
        for _ in range(ROUNDS):
            draw.shuffle(order)
            for name in order:
                with tap.on() if name == "open" else contextlib.nullcontext():
                    rounds[name].append(each_us())
        dist.destroy_process_group()
    medians = {name: statistics.median(values) for name, values in {"never": before, **rounds}.items()}
    apart = abs(medians["again"] - medians["closed"])
    closed = (medians["again"] + medians["closed"]) / 2 - medians["never"]
    opened = medians["open"] - medians["closed"]
    for name, value in medians.items():
        print(f"{name:<8} {value:7.2f} us a collective")
    ok = closed <= max(apart, RESOLUTION_US) and opened <= BAR_OPEN_US
    return harness.result(
        "tap", ok=ok, closed_us=round(closed, 2), aa_us=round(apart, 2), open_us=round(opened, 2)
    )


if __name__ == "__main__":
    exit_with(main)
