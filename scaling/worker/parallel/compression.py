"""Communication hooks: torch's own, which tell a tap whose bucket they send."""

# No postponed annotations here: DDP checks a hook's annotations by identity.

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from scaling.worker.parallel.tap import Tap

WIRE = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Type of the elements that are sent, where it is not that of the gradients."""
POWER_SGD_START = 2
"""Steps before PowerSGD compresses: the minimum, since DDP settles its buckets in the second step."""

Future = torch.futures.Future[torch.Tensor]
Reduce = Callable[[Any, Any], Future]
"""Given a group and a `GradBucket`, returns a future of the bucket's averaged gradients."""


def reduction(name: str, group: Any) -> Reduce:
    """The named communication hook, for one wrapper only, since PowerSGD keeps state between steps.

    `group`: the one that it is given with each bucket.
    """
    if name in WIRE:
        hook: Reduce = fp16_compress_hook if name == "fp16" else bf16_compress_hook
        return hook
    assert name == "powersgd", name
    state = PowerSGDState(
        process_group=group, matrix_approximation_rank=1, start_powerSGD_iter=POWER_SGD_START
    )
    # PowerSGD starts each all-reduce, and waits for it, in the callback of another. On NCCL callbacks run in the hook's
    # thread. On Gloo they run in its two threads, in an order that differs between ranks; both can wait, and it hangs.
    one_by_one = dist.get_backend(group) == "gloo"

    def power_sgd(_over: Any, bucket: Any) -> Future:
        future: Future = powerSGD_hook(state, bucket)
        if one_by_one:
            future.wait()
        return future

    return power_sgd


def register(ddp: DistributedDataParallel, name: str, group: Any) -> None:
    """Make a wrapper reduce its buckets with the named hook; `none` leaves it unchanged."""
    if name == "none":
        return
    reduce = reduction(name, group)

    # torch rejects bf16_compress_hook by its name without NCCL, though Gloo sums bf16, so wrap it.
    def hook(over: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        if Tap.now is not None:
            Tap.now.bucket = bucket.index()
        return reduce(over, bucket)

    ddp.register_comm_hook(group, hook)
