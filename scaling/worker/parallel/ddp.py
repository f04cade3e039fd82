"""Build the module that is trained over a group with DDP, and name what it and its layers send.

Communication hooks are torch's own, which tell a tap whose bucket they send.

A layer of SyncBatchNorm gathers its mean and variance from all ranks in forward and adds up two sums over them in
backward. torch makes these calls without async_op (torch/nn/modules/_functions.py), so the current stream goes on when
the result is there. Over one rank a layer does what BatchNorm does and calls nothing.

A module with buffers (BatchNorm's running statistics) takes part in a broadcast from its first rank at the begin of
every forward that follows a reduced backward. Ranks wait for each other there, so a late rank shows in forward and not
at the first bucket (parallel.waits.Broadcasts).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from scaling.settings.run import DEFAULT_BUCKET_MB, KINDS, Ddp
from scaling.worker.models.options import compiled
from scaling.worker.parallel.tap import Tap
from scaling.worker.parallel.torch_private import logging_data, rebuild_buckets

WIRE = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Type of the elements that are sent, where it is not that of the gradients."""
POWER_SGD_START = 2
"""Steps before PowerSGD compresses: the minimum, since DDP settles its buckets in the second step."""


def register(ddp: DistributedDataParallel, name: str, group: Any) -> None:
    """Make a wrapper reduce its buckets over a group with the named hook; `none` leaves it unchanged."""
    if name == "none":
        return
    state: Any = group
    reduce: Any = fp16_compress_hook if name == "fp16" else bf16_compress_hook
    # PowerSGD starts each all-reduce, and waits for it, in the callback of another. On NCCL callbacks run in the hook's
    # thread. On Gloo they run in its two threads, in an order that differs between ranks; both can wait, and it hangs.
    one_by_one = name == "powersgd" and dist.get_backend(group) == "gloo"
    if name == "powersgd":  # it keeps state between steps
        reduce = powerSGD_hook
        state = PowerSGDState(
            process_group=group, matrix_approximation_rank=1, start_powerSGD_iter=POWER_SGD_START
        )

    # torch rejects bf16_compress_hook by its name without NCCL, though Gloo sums bf16, so wrap it.
    def hook(over: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        if Tap.now is not None:
            Tap.now.bucket = bucket.index()
        future: torch.futures.Future[torch.Tensor] = reduce(over, bucket)
        if one_by_one:
            future.wait()
        return future

    hook.__annotations__ = {}  # DDP checks them by identity, and postponed ones are text
    ddp.register_comm_hook(state, hook)


_GATHER, _REDUCE = KINDS.index("all_gather"), KINDS.index("all_reduce")


class Norms:
    """The SyncBatchNorm layers of a module; there may be none."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [layer for layer in module.modules() if isinstance(layer, nn.SyncBatchNorm)]

    def __len__(self) -> int:
        return len(self._layers)

    def over(self, group: Any) -> None:
        """Take statistics over the ranks of a process group from here on."""
        for layer in self._layers:
            layer.process_group = group

    def are_over(self, group: Any) -> bool:
        """Whether all of them take statistics over the ranks of this process group."""
        return all((layer.process_group or dist.group.WORLD) is group for layer in self._layers)

    def sent(self, ranks: int) -> frozenset[tuple[int, int]]:
        """What they send over so many ranks: kind, and elements of the result.

        A rank's means, inverse deviations and count in forward; in backward two sums a channel.
        """
        gathered = {(_GATHER, ranks * (2 * layer.num_features + 1)) for layer in self._layers}
        return frozenset(gathered | {(_REDUCE, 2 * layer.num_features) for layer in self._layers})


_SAMPLED_FIRST = 10
"""DDP takes statistics in so many first forwards, and waits for the device there (reducer.cpp)."""
_NEVER = 2**31 - 1


class Bare:
    """A workload's module without a strategy. It is compiled once for each use, since each has graphs of its own."""

    def __init__(self, module: torch.nn.Module, *, alone: dist.ProcessGroup, compiles: bool) -> None:
        """`alone`: the group of this rank itself, over which the module's norms go."""
        self._module, self._alone, self._compiles = module, alone, compiles
        self.norms = Norms(module)
        self._compiled: dict[str, torch.nn.Module] = {}

    def module(self, use: str) -> torch.nn.Module:
        """The module for a use."""
        self.norms.over(self._alone)
        if not self._compiles:
            return self._module
        if use not in self._compiled:
            self._compiled[use] = compiled(self._module)
        return self._compiled[use]


def wrap(
    module: torch.nn.Module, settings: Ddp, group: dist.ProcessGroup, *, sync: bool = True
) -> DistributedDataParallel:
    """The module as DDP over a group, without a communication hook. `sync`: as Strategy.apply has it."""
    return DistributedDataParallel(
        module,
        process_group=group,
        # Given a number, DDP also sizes its first bucket by it. Only None keeps its default of 1 MiB there.
        bucket_cap_mb=None if settings.bucket_cap_mb == DEFAULT_BUCKET_MB else settings.bucket_cap_mb,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
        static_graph=settings.static_graph,
        find_unused_parameters=settings.find_unused_parameters,
        init_sync=sync,
    )


def settings_of(ddp: DistributedDataParallel) -> Ddp:
    """What a wrapper of anyone's was made with."""
    return Ddp(
        bucket_cap_mb=ddp.bucket_bytes_cap / 2**20,
        gradient_as_bucket_view=bool(ddp.gradient_as_bucket_view),
        static_graph=bool(ddp.static_graph),
        find_unused_parameters=bool(ddp.find_unused_parameters),
        comm_hook="own" if has_own_hook(ddp) else "none",
    )


def settle(ddp: DistributedDataParallel) -> None:
    """After a new wrapper's first steps (settings.schedule.settling_steps): make it like one that has trained for long.

    It makes its buckets in the order of the gradients now, as all ranks do, where it would do so at the next forward.
    It says what they are, and takes no statistics again. DDP takes them in its first ten forwards and in every
    hundredth, and waits for the device there, which a measured step must not. A forward is counted where it is
    prepared.
    """
    assert ddp.logger is not None
    rebuild_buckets(ddp)
    ddp.logger.set_runtime_stats_and_log()
    ddp._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]  # noqa: SLF001
    for _ in range(_SAMPLED_FIRST):
        ddp.reducer.prepare_for_forward()


def bucket_parameters(ddp: DistributedDataParallel) -> list[list[int]]:
    """Indices of each bucket's parameters, in the order of reduction; empty before DDP's second step."""
    text = str(logging_data(ddp).get("rebuilt_per_bucket_param_indices") or "")
    return [[int(i) for i in part.split()] for part in text.split(",") if part.strip()]


def bucket_bytes(ddp: DistributedDataParallel) -> list[int]:
    """Sizes of the buckets in the order of reduction, bytes. DDP settles them in its second step."""
    data = logging_data(ddp)
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return [int(size) for size in str(text).split(",") if size.strip()]


def has_own_hook(ddp: DistributedDataParallel) -> bool:
    """Whether a communication hook was registered."""
    return bool(getattr(ddp, "_comm_hooks", None))


def accumulating(module: torch.nn.Module) -> Callable[[bool], contextlib.AbstractContextManager[Any]]:
    """Around a micro-step, given whether it is the last: DDP reduces nothing before that. Other modules never do."""
    if not isinstance(module, DistributedDataParallel):
        return lambda _last: contextlib.nullcontext()
    return lambda last: contextlib.nullcontext() if last else module.no_sync()


def sends_buffers(module: torch.nn.Module) -> bool:
    """Whether this is a DDP wrapper of two or more ranks that keeps buffers alike."""
    return (
        isinstance(module, DistributedDataParallel)
        and dist.get_world_size(module.process_group) > 1
        and bool(module.broadcast_buffers)
        and any(True for _ in module.buffers())
    )
