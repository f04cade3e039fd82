"""Train a module of which every rank holds a copy: DistributedDataParallel, behind the seam of strategies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.settings.run import Spec
from scaling.settings.topology import CPU
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.measure.probe import ReadyTimes, SoloProbe
from scaling.worker.parallel.ddp import (
    STAMPS_A_LAYER,
    WIRE,
    Bare,
    BucketDetail,
    accumulating,
    bucket_bytes,
    register,
    sends_buffers,
    settle,
    wrap,
)
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.strategy import Detail
from scaling.worker.parallel.streams import find, rewind, withheld
from scaling.worker.parallel.tap import Tap
from scaling.worker.parallel.waits import Broadcasts, Waits


class Replicas:
    """DDP over a trial's group, or over a group of one rank. It trains the workload's own parameters.

    Only one wrapper exists at a time. DDP's hooks sit on the parameters, so a second one would run in the first one's
    backward, and would count its gradients.
    """

    steps_alone = True

    def __init__(
        self,
        spec: Spec,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        group: Group,
        solo: Group,
        device: Accelerator,
    ) -> None:
        bare = Bare(module, alone=solo.data, compiles=spec.compile)
        self._whole, self._ddp, self.module, self.norms = module, spec.ddp, bare.module, bare.norms
        self.optimizer, self.device, self._group, self._solo = optimizer, device, group, solo
        self.wire_dtype = WIRE.get(spec.ddp.comm_hook, torch.float32)

    def apply(self, use: str, *, alone: bool, sync: bool = True) -> Replicated:
        """A new wrapper."""
        group = self._solo if alone else self._group
        rewind(self.device)
        ddp = wrap(self.module(use), self._ddp, group.data, sync=sync)
        self.norms.over(group.data)
        register(ddp, self._ddp.comm_hook, group.data)
        return Replicated(self, ddp, group, alone)

    def free(self) -> None:
        """A wrapper goes with its last reference."""

    def computed(self, optimizer: torch.optim.Optimizer) -> dict[str, int]:
        """All of the model; gradients that are no views of their buckets lie beside them."""
        sizes = share_bytes(self._whole, optimizer, 1, 0)
        sizes["gradients"] *= 1 if self._ddp.gradient_as_bucket_view else 2
        return sizes


class Replicated:
    """A wrapper as the loop trains it."""

    def __init__(self, strategy: Replicas, ddp: DistributedDataParallel, group: Group, alone: bool) -> None:
        """`alone`: over one rank."""
        self.module: torch.nn.Module = ddp
        self._ddp, self._group, self._alone = ddp, group, alone
        self.optimizer, self._device, self._norms = strategy.optimizer, strategy.device, strategy.norms
        self.accumulate: Callable[[bool], contextlib.AbstractContextManager[Any]] = accumulating(ddp)

    @property
    def buckets(self) -> list[int]:
        """Bytes of the buckets in the order of reduction."""
        return bucket_bytes(self._ddp)

    def settle(self) -> None:
        """Make the buckets in the order of the gradients."""
        settle(self._ddp)

    def withheld(self) -> str:
        """Nothing but the stream of its communicator is stamped."""
        find([self._group.data], self._device)
        return withheld([self._group.data], (), self._device)

    def detail(self, *, detailed: bool) -> Detail:
        """The buckets of detailed blocks, and in every stamped one where the module waits inside."""
        if self._alone:
            return SoloProbe(self._ddp, self._device) if detailed else Detail()
        sends = sends_buffers(self._ddp)
        waits = Waits(self._device) if self._norms else Broadcasts(self._device) if sends else None
        if not detailed:
            return Detail(waits, stamps=2 * sends + STAMPS_A_LAYER * len(self._norms))
        ready = ReadyTimes(self._ddp).absolute_ns if self._device.type == CPU else None
        tap = Tap(self._device.clock)
        return BucketDetail(self._ddp, tap, ready, self._group.key, self._norms, waits)

    def bytes(self) -> dict[str, int]:
        """Every rank holds everything. Gradients that are no views of their buckets lie beside them."""
        sizes = held_bytes(self.module, self.optimizer)
        if not self._ddp.gradient_as_bucket_view:
            sizes["gradients"] += sum(self.buckets)
        return sizes


def held_bytes(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes that this rank holds of parameters and buffers, of gradients, and of the optimizer's states."""

    def local(tensor: torch.Tensor) -> int:
        inner = getattr(tensor, "_local_tensor", tensor)
        return inner.numel() * inner.element_size()

    parameters = list(module.parameters())
    states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return {
        "parameters": sum(map(local, [*parameters, *module.buffers()])),
        "gradients": sum(local(p) for p in parameters if p.requires_grad),
        "optimizer": sum(map(local, states)),
    }


def share_bytes(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, ranks: int, place: int
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
