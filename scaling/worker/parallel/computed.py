"""What a rank should hold by arithmetic: from the whole model, its optimizer and the mesh. Beside what it does hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from scaling.settings.parallel import Fsdp


def share_bytes(
    module: nn.Module, optimizer: torch.optim.Optimizer, ranks: int, place: int
) -> dict[str, int]:
    """Bytes of parameters with buffers, of gradients, and of optimizer states in one of `ranks` equal shards.

    `module`, `optimizer`: whole; without a step of the optimizer its states are left out. fully_shard cuts a tensor's
    first dimension into parts of ceil(length / ranks), so the last ranks may have less, or nothing. Buffers are not
    sharded.
    """

    def part(tensor: torch.Tensor) -> int:
        if tensor.dim() == 0:
            return tensor.nbytes
        chunk = -(-tensor.shape[0] // ranks)
        rows = min(chunk, max(0, tensor.shape[0] - place * chunk))
        return tensor.nbytes // max(1, tensor.shape[0]) * rows

    parameters = list(module.parameters())
    sizes = {
        "parameters": sum(map(part, parameters)) + sum(b.nbytes for b in module.buffers()),
        "gradients": sum(part(p) for p in parameters if p.requires_grad),
    }
    states = [state for p in parameters if (state := optimizer.state.get(p))]
    if len(states) == sum(p.requires_grad for p in parameters):
        sizes["optimizer"] = sum(
            part(v) for state in states for v in state.values() if isinstance(v, torch.Tensor)
        )
    return sizes


def unsharded_bytes(units: Sequence[int], fsdp: Fsdp, *, root: bool) -> int:
    """Most bytes of gathered parameters at once; `units`: of each whole unit, in their order, the root's first.

    The root's are kept from forward to the end of backward. Of the others, those gathered ahead stand beside the one
    that computes; without explicit prefetching torch gathers one ahead in backward. With reshard_after_forward=false
    all are there when backward begins. `root`: the first unit is the root's.
    """
    inner = list(units[1:] if root else units)
    kept = units[0] if root and units else 0
    if not fsdp.reshard:
        return kept + sum(inner)
    window = 1 + max(1, fsdp.prefetch)
    most = max((sum(inner[k : k + window]) for k in range(len(inner))), default=0)
    return kept + most
