"""Which models a probe can follow: the only place that knows all of them."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import InputError
from scaling.worker.probe.followed import Followed
from scaling.worker.probe.sharded import ShardedModel
from scaling.worker.probe.wrapped import WrappedModel


def follow(model: torch.nn.Module) -> Followed:
    """InputError where `model` is neither DDP's wrapper, nor sharded by fully_shard, nor compiled from one of them."""
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, DistributedDataParallel):
        return WrappedModel(inner, compiled=inner is not model)
    if isinstance(inner, FSDPModule):
        return ShardedModel(inner)
    given = f"Probe({type(model).__name__}): "
    if type(inner).__name__ == "FullyShardedDataParallel":
        raise InputError(f"{given}torch's older FSDP is not followed; use torch.distributed.fsdp.fully_shard")
    raise InputError(
        f"{given}a DistributedDataParallel, or a module after fully_shard, is expected; "
        "wrap the model before, Probe(DistributedDataParallel(model)), or call fully_shard(model)"
    )
