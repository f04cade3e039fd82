"""Which models a probe can follow: the only place that knows all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import InputError
from scaling.worker.probe.followed import Followed
from scaling.worker.probe.phases import Phases
from scaling.worker.probe.pipelined import PipelinedModel, PipelineMarks, is_schedule
from scaling.worker.probe.sharded import ShardedModel
from scaling.worker.probe.step_marks import StepMarks
from scaling.worker.probe.wrapped import WrappedModel


def follow(model: Any) -> Followed:
    """InputError where `model` is neither DDP's wrapper, nor sharded by fully_shard, nor a pipeline's schedule.

    What torch.compile made of one of the first two is one as well.
    """
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, DistributedDataParallel):
        return WrappedModel(inner, compiled=inner is not model)
    if isinstance(inner, FSDPModule):
        return ShardedModel(inner)
    if is_schedule(model):
        return PipelinedModel(model)
    given = f"Probe({type(model).__name__}): "
    if type(inner).__name__ == "FullyShardedDataParallel":
        raise InputError(f"{given}torch's older FSDP is not followed; use torch.distributed.fsdp.fully_shard")
    raise InputError(
        f"{given}a DistributedDataParallel, a module after fully_shard, or a schedule of torch.distributed.pipelining "
        "is expected; wrap the model before, Probe(DistributedDataParallel(model)), or call fully_shard(model)"
    )


def marks_of(followed: Followed, model: Any, stamp: Callable[[], int]) -> StepMarks:
    """What finds the phases of its steps. `model`: what the loop calls."""
    if isinstance(followed, PipelinedModel):
        return PipelineMarks(followed, stamp)
    return Phases(followed, model, stamp)
