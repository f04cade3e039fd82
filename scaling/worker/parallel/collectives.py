"""Collectives that a back end does at a cost of its own, done as NCCL does them."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist

from scaling.worker.parallel.tap import HOST_BACKENDS, backend_of

# torch 2.13 renamed them; the older names still exist there and warn.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reduce_scatter(
    output: torch.Tensor,
    whole: torch.Tensor,
    group: Any,
    *,
    mean: bool = False,
    around: contextlib.AbstractContextManager[Any] | None = None,
) -> None:
    """Sum `whole` over the ranks and keep this rank's part of it in `output`.

    Gloo's own moves as much as an all-reduce. There each rank sends every other its part and sums what it receives,
    which moves (n-1)/n of `whole`, as a ring does. `around` is entered for that exchange.
    """
    if backend_of(group, whole.device.type) not in HOST_BACKENDS:
        _reduce_scatter(output, whole, group=group, op=dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM)
        return
    n = dist.get_world_size(group)
    received = torch.empty_like(whole)
    with around or contextlib.nullcontext():
        dist.all_to_all_single(received, whole, group=group)
    torch.sum(received.view(n, -1), dim=0, out=output.view(-1))
    if mean:
        output.div_(n)
