"""The arms of a trial: each runs a loop over the bare module, or over a wrapper that lives for one block.

At any time there is one optimizer and at most one wrapper, whatever the number of world sizes and arms. So measuring
takes no more memory than training, and no arm runs beside the hooks of another one's wrapper.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.spec.plan import Trial
from scaling.spec.promise import DETAILS, WHOLE, Content
from scaling.spec.run import Spec
from scaling.spec.schedule import (
    BARE_ALL,
    BARE_ONE,
    DDP_SOLO,
    PLAIN,
    PROBE,
    VARIANT,
    half_batch,
    settling_steps,
)
from scaling.worker.accelerator.devices import Device
from scaling.worker.accelerator.precision import Precision
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.probe import BucketProbe, SoloProbe, Take
from scaling.worker.measure.step import Loop, broadcasts
from scaling.worker.models.options import loading
from scaling.worker.parallel.buffers import broadcast_rows
from scaling.worker.parallel.ddp import Wrapping, bucket_bytes, settle
from scaling.worker.parallel.groups import Group

BARE, HALF, DETAILED, TRIED = "bare", "half", "detailed", "tried"
"""Uses of the module, beside PLAIN, DDP_SOLO and VARIANT. Each has its own graphs and its own scale of gradients."""


class Settings:
    """How a spec builds and feeds the training loops of one world size."""

    def __init__(
        self,
        spec: Spec,
        *,
        trial: Trial,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        device: Device,
        precision: Precision,
        faults: Faults,
        feed: Callable[[int], Feed],
    ) -> None:
        """`feed` returns the feed of a batch size."""
        self._feed_of, self.accumulation = feed, spec.accumulation_steps
        self.feed = feed(spec.batch_at(trial.world_size) // spec.accumulation_steps)
        self.load = loading(spec, device.load)
        self.wrapping = Wrapping(workload.module, spec.ddp, compiles=spec.compile)
        self.settling = settling_steps(spec)
        self._new_scaler = precision.scaler
        self._scalers: dict[str, torch.amp.GradScaler] = {}
        self._loop = functools.partial(
            Loop,
            workload=workload,
            optimizer=optimizer,
            accumulation=spec.accumulation_steps,
            device=device,
            faults=faults,
            load=self.load,
            precision=precision,
        )

    def loop(self, module: torch.nn.Module, use: str, batch: int | None = None) -> Loop:
        """The training loop of a module, bare or wrapped; `batch`: samples of a step, if not the trial's.

        The scale of fp16 gradients outlives the loop: it belongs to the use.
        """
        feed = self.feed if batch is None else self._feed_of(batch // self.accumulation)
        if use not in self._scalers:
            self._scalers[use] = self._new_scaler()
        return self._loop(module=module, fetch=feed.fetch, scaler=self._scalers[use])


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One arm while its block runs."""

    loop: Loop
    detailed: BucketProbe | None = None
    solo: SoloProbe | None = None
    settled: int = 0
    """Steps that its new wrapper has taken."""

    def taking(self) -> contextlib.AbstractContextManager[Take | None]:
        """Inside, the yielded function collects a detailed step's buckets; None for other blocks."""
        if self.solo is not None:
            return self.solo.taking()
        return contextlib.nullcontext(None if self.detailed is None else self.detailed.take)

    def broadcasts(self, stamps: Sequence[int], first: int) -> list[CollectiveRow]:
        """The broadcasts of buffers of a detailed step over the group, with tokens; `first`: position of the first."""
        ddp = self.loop.module
        if self.detailed is None or not isinstance(ddp, DistributedDataParallel):
            return []
        return broadcast_rows(ddp, broadcasts(stamps), first)

    def parameters(self, begin_ns: Sequence[int]) -> list[tuple[int, int]]:
        """BlockRecord.parameters of a ddp_solo block; empty for other arms."""
        return [] if self.solo is None else self.solo.parameters(begin_ns)


class Arms:
    """All arms of one trial on one rank. Only one is open at a time."""

    def __init__(
        self,
        *,
        spec: Spec,
        variant: Spec | None,
        trial: Trial,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        groups: Mapping[int, Group],
        device: Device,
        precision: Precision,
        faults: Faults,
        feed: Callable[[int], Feed],
        content: Content = WHOLE,
    ) -> None:
        """`optimizer`: the launch's, over the workload's parameters. `content`: what is measured."""
        n = trial.world_size
        settings = functools.partial(
            Settings,
            trial=trial,
            workload=workload,
            optimizer=optimizer,
            device=device,
            precision=precision,
            faults=faults,
            feed=feed,
        )
        self._own = settings(spec)
        self._other = None if variant is None else settings(variant)
        self._device, self._n = device, n
        self.module, self.optimizer = workload.module, optimizer
        """Those of the launch, which all arms train."""
        self._group, self._solo_group = groups[n].data, groups[1].data
        self._comm_hook = spec.ddp.comm_hook
        self.load, self.compiles = self._own.load, spec.compile
        self.wire_dtype = self._own.wrapping.wire_dtype
        """Type of the elements that are reduced."""
        apart = self._other is None and n > 1 and content.has(DETAILS)
        self.half_batch = half_batch(spec) if apart else None
        """Samples of a step with half of the batch; None where none is measured."""
        if self.half_batch is not None:
            feed(self.half_batch // spec.accumulation_steps)  # make its batches now
        self.varies = variant is not None
        """Whether other settings are measured beside the run's."""
        self.apart = apart
        """Whether a step is taken apart: DDP alone and the detailed probe run."""
        self.communicator_bytes: int | None = None
        """Growth of device memory outside torch's allocator when the first wrapper over the group was made."""
        self._synced: set[str] = set()
        self._wire: list[int] = []
        self._buckets: list[int] = []

    def tried(self) -> None:
        """Run two whole steps in which no rank needs another: the second has all that any step has in memory."""
        for settings, use in ((self._own, PLAIN), (self._other, VARIANT)):
            if settings is None:
                continue
            loop = settings.loop(settings.wrapping.over(self._solo_group, use, sync=False), TRIED)
            try:
                for _ in range(2):
                    loop.plain()
                self._device.synchronize()
            finally:
                loop.release()
                self.optimizer.zero_grad(set_to_none=True)

    def compile(self, arm: str, *, detailed: bool, half: bool) -> None:
        """Run a step of an arm in which no rank needs another, since its graphs take ranks unequal times to make."""
        settings, use = self._use(arm, detailed=detailed, half=half)
        if use in (BARE, HALF):
            module = settings.wrapping.module(use)
        else:
            group = self._solo_group if use == DDP_SOLO else self._group
            module = settings.wrapping.over(group, use, hooked=False, sync=False)
        loop = settings.loop(module, TRIED, self.half_batch if use == HALF else None)
        loop.local()
        loop.release()

    def warmed(self) -> tuple[tuple[str, bool, bool], ...]:
        """(arm, detailed, half batch) of each use of the module, in the order of warm-up: plain comes last."""
        return (
            (BARE_ALL, False, False),
            *([(BARE_ALL, False, True)] if self.half_batch is not None else []),
            *([(VARIANT, False, False)] if self._other is not None else []),
            *([(DDP_SOLO, False, False), (PROBE, True, False)] if self.apart else []),
            (PLAIN, False, False),
        )

    @contextlib.contextmanager
    def open(self, arm: str, *, detailed: bool = False, half: bool = False) -> Iterator[Opened]:
        """Inside, the arm's loop can run; its wrapper is made, takes its first steps, and is freed at the end.

        The light probe runs on the plain wrapper, since it needs no hook there. `half`: with half of the batch.
        """
        settings, use = self._use(arm, detailed=detailed, half=half)
        if use in (BARE, HALF):
            batch = self.half_batch if use == HALF else None
            yield Opened(loop=settings.loop(settings.wrapping.module(use), use, batch))
            return
        ddp = self._wrapper(settings.wrapping, use)
        probe = solo = None
        if use == DETAILED:
            probe = BucketProbe(ddp, self._group, self._n, self._device, self._comm_hook)
        loop = settings.loop(ddp, use)
        try:
            for _ in range(settings.settling):
                loop.plain()
            settle(ddp)
            if use == PLAIN:
                self._buckets = bucket_bytes(ddp)
            if probe is not None:
                probe.discard()
            if use == DDP_SOLO and detailed:
                solo = SoloProbe(ddp, self._device)
            del ddp  # the loop alone keeps it
            yield Opened(loop=loop, detailed=probe, solo=solo, settled=settings.settling)
        finally:
            loop.release()

    def _use(self, arm: str, *, detailed: bool, half: bool) -> tuple[Settings, str]:
        """What an arm uses the module for, and under which settings."""
        if arm in (BARE_ONE, BARE_ALL):
            return self._own, HALF if half else BARE
        if arm == VARIANT:
            assert self._other is not None
            return self._other, VARIANT
        if arm == PROBE and detailed:
            return self._own, DETAILED
        return self._own, DDP_SOLO if arm == DDP_SOLO else PLAIN

    def _wrapper(self, wrapping: Wrapping, use: str) -> DistributedDataParallel:
        """A new wrapper. The first one of a use compares and sends the parameters, as at the start of a training."""
        group = self._solo_group if use == DDP_SOLO else self._group
        first, looked = use not in self._synced, use != DDP_SOLO and not self._synced - {DDP_SOLO}
        before = self._device.foreign_bytes() if looked else None
        ddp = wrapping.over(group, use, hooked=use != DETAILED, sync=first)
        if looked:
            after = self._device.foreign_bytes()
            self.communicator_bytes = None if before is None or after is None else max(0, after - before)
        self._synced.add(use)
        return ddp

    def micro_steps(self, arm: str) -> int:
        """Micro-steps of one optimizer step; for replay and sweep, the spec's."""
        settings = self._other if arm == VARIANT and self._other is not None else self._own
        return settings.accumulation

    def messages(self, wire: Sequence[int]) -> None:
        """Note the bytes of each all-reduce of a step, in the order of launch. A communication hook may change them."""
        self._wire = list(wire)

    def stamps(self, opened: Opened) -> int:
        """Largest number of stamps in a step of an open arm."""
        if opened.detailed is None and opened.solo is None:
            return opened.loop.stamps
        most = max(len(self._buckets), len(self._wire), 1)
        return opened.loop.stamps + 2 * most * opened.loop.micro_steps

    def feed(self, arm: str) -> Feed:
        """The feed of an arm."""
        return self._other.feed if arm == VARIANT and self._other is not None else self._own.feed

    def feeds(self) -> list[Feed]:
        """All feeds of the trial."""
        return list({id(feed): feed for feed in (self.feed(PLAIN), self.feed(VARIANT))}.values())

    def wire(self) -> list[int]:
        """Bytes of each all-reduce of a step, in the order of launch."""
        return self._wire or self._buckets

    def buckets(self) -> list[int]:
        """Bytes of each bucket, in the order of reduction."""
        return self._buckets
