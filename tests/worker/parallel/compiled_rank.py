"""One rank: collectives that the code around a compiled function's graph calls, without a tap and below one."""

from __future__ import annotations

import torch
import torch.distributed as dist

from scaling.worker.accelerator.clock import HostClock
from scaling.worker.parallel.tap import Tap


@torch.compile(backend="eager")
def step(buffer: torch.Tensor) -> torch.Tensor:
    """As a compiled DDP's forward does: broadcast the buffers, then compute."""
    torch._dynamo.graph_break()
    dist._broadcast_coalesced(dist.group.WORLD, [buffer], 1 << 20, 0)
    return buffer * 2


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tap = Tap(HostClock())
step(torch.ones(3))
with tap.on():
    step(torch.ones(3))
    step(torch.ones(4))
print([(seen.bytes, seen.done > 0) for seen in tap.take()])
