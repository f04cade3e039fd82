"""One rank of a plain loop that sends a synthetic step's buckets: torch alone, nothing of this project.

It sleeps for the compute, gives each bucket to Gloo at its calculated time, and notes when each was launched and ended.
Started by truth_parts/plain.py under torchrun.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

LEAD_IN = 5


def steps(
    buckets: list[int], *, compute_ms: float, late_ms: float, count: int
) -> list[tuple[list[int], list[int]]]:
    """Launch and end of each bucket (bytes) of each step, ns of this machine's clock. The first steps are left out.

    Forward takes a third of the compute; a bucket is due when backward has come through its share of the bytes.
    """
    import torch
    import torch.distributed as dist

    tensors = [torch.zeros(size // 4) for size in buckets]
    stamps = []
    for _ in range(LEAD_IN + count):
        begin = time.monotonic()
        launched: list[int] = []
        ended = [0] * len(buckets)
        works = []
        sent = 0
        for number, tensor in enumerate(tensors):
            sent += buckets[number]
            due_ms = compute_ms / 3 + compute_ms * 2 / 3 * sent / sum(buckets) + late_ms
            time.sleep(max(0.0, begin + due_ms / 1e3 - time.monotonic()))
            launched.append(time.monotonic_ns())
            work = dist.all_reduce(tensor, async_op=True)

            def note(_: Any, number: int = number, ended: list[int] = ended) -> None:
                ended[number] = time.monotonic_ns()

            work.get_future().add_done_callback(note)
            works.append(work)
        for work in works:
            work.wait()
        stamps.append((launched, ended))
    return stamps[LEAD_IN:]


def main() -> None:
    """Arguments: the folder, and what the loop is as JSON (see truth_parts/plain.py)."""
    import torch.distributed as dist

    folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    late_ms = asked["late_ms"] if rank == asked["late_rank"] else 0.0
    stamps = steps(asked["buckets"], compute_ms=asked["compute_ms"], late_ms=late_ms, count=asked["steps"])
    (folder / f"step-{rank}.json").write_text(json.dumps(stamps))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
