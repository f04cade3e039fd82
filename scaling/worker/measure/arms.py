"""The training loop of each arm: the bare module, DDP over one rank, DDP over the group."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.spec.plan import Trial
from scaling.spec.promise import DETAILS, WHOLE, Content
from scaling.spec.run import Spec
from scaling.spec.schedule import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE, STEP_ARMS, VARIANT, half_batch
from scaling.worker.accelerator.devices import Device
from scaling.worker.accelerator.precision import Precision
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.probe import BucketProbe, SoloProbe, Take
from scaling.worker.measure.step import Loop
from scaling.worker.models.options import loading
from scaling.worker.parallel.ddp import Wrapping, bucket_bytes
from scaling.worker.parallel.groups import Group


class Settings:
    """How a spec builds and feeds the training loops of one world size. Several may share the module and optimizer."""

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
        self._feed_of, self._accumulation = feed, spec.accumulation_steps
        self.feed = feed(spec.batch_at(trial.world_size) // spec.accumulation_steps)
        self.load = loading(spec, device.load)
        self.wrapping = Wrapping(workload.module, spec.ddp, compiles=spec.compile)
        self._loop = functools.partial(
            Loop,
            workload=workload,
            accumulation=spec.accumulation_steps,
            device=device,
            precision=precision,
            faults=faults,
            load=self.load,
        )
        self._optimizer, self._optimizer_of = optimizer, workload.optimizer

    def loop(self, module: torch.nn.Module, batch: int | None = None) -> Loop:
        """The training loop of a module, bare or wrapped; `batch`: samples of a step, if not the trial's."""
        feed = self.feed if batch is None else self._feed_of(batch // self._accumulation)
        copied = self.wrapping.copies and isinstance(module, DistributedDataParallel)
        optimizer = self._optimizer_of(module.parameters()) if copied else self._optimizer
        return self._loop(module=module, optimizer=optimizer, fetch=feed.fetch)


class Arms:
    """All training loops of one trial on one rank. Only one is in use at a time."""

    def __init__(
        self,
        *,
        spec: Spec,
        variant: Spec | None,
        trial: Trial,
        workload: Workload,
        groups: Mapping[int, Group],
        device: Device,
        precision: Precision,
        faults: Faults,
        feed: Callable[[int], Feed],
        meet: Callable[[], None],
        content: Content = WHOLE,
    ) -> None:
        """`content`: what is measured; loops of other arms are not made.

        `meet` is called after what a rank makes alone and before the wrappers, which ranks make together.
        """
        n, group = trial.world_size, groups[trial.world_size].data
        settings = functools.partial(
            Settings,
            trial=trial,
            workload=workload,
            optimizer=workload.optimizer(workload.module.parameters()),
            device=device,
            precision=precision,
            faults=faults,
            feed=feed,
        )
        own = settings(spec)
        other = None if variant is None else settings(variant)
        self._device = device
        self._feed = self._variant_feed = own.feed
        self.load = own.load
        self.compiles = spec.compile
        self.wire_dtype = own.wrapping.wire_dtype
        """Type of the elements that are reduced."""
        self.bare = own.loop(own.wrapping.bare())
        self._half_batch = half_batch(spec)
        self.half: Loop | None = None
        takes_apart = other is None and n > 1 and content.has(DETAILS)
        if takes_apart and self._half_batch is not None:
            self.half = own.loop(own.wrapping.bare(), self._half_batch)
        meet()
        before = device.foreign_bytes()
        self._plain_ddp = own.wrapping.trained(group)
        after = device.foreign_bytes()
        self.communicator_bytes = None if before is None or after is None else max(0, after - before)
        """Growth of device memory outside torch's allocator when the first wrapper over the group was made."""
        self.plain = own.loop(self._plain_ddp)
        self.variant: Loop | None = None
        self.solo: Loop | None = None
        self.detailed: Loop | None = None
        if other is not None:
            self._variant_feed = other.feed
            self.variant = other.loop(other.wrapping.trained(group))
        elif takes_apart:
            self._solo_ddp = own.wrapping.trained(groups[1].data)
            self._solo_probe: SoloProbe | None = None
            self.solo = own.loop(self._solo_ddp)
            detailed = own.wrapping.without_hook(group)
            self._probe = BucketProbe(detailed, group, n, device, spec.ddp.comm_hook)
            self.detailed = own.loop(detailed)

    def loop(self, arm: str, *, detailed: bool, batch: int | None = None) -> Loop:
        """The loop of a step arm. The light probe runs on the plain wrapper, since it needs no hook there.

        `batch`: that of the block, which may be half of the trial's.
        """
        if arm in (BARE_ONE, BARE_ALL):
            return self.half if self.half is not None and batch == self._half_batch else self.bare
        found = {
            PLAIN: self.plain,
            DDP_SOLO: self.solo,
            PROBE: self.detailed if detailed else self.plain,
            VARIANT: self.variant,
        }[arm]
        assert found is not None
        return found

    def micro_steps(self, arm: str) -> int:
        """Micro-steps of one optimizer step; for replay and sweep, the spec's."""
        return self.loop(arm, detailed=False).micro_steps if arm in STEP_ARMS else self.plain.micro_steps

    def taking(self, arm: str, *, detailed: bool) -> contextlib.AbstractContextManager[Take | None]:
        """Inside, the yielded function collects a detailed step's buckets; None for other blocks."""
        if not detailed:
            return contextlib.nullcontext()
        if arm == DDP_SOLO:
            self._solo_probe = SoloProbe(self._solo_ddp, self._device)
            return self._solo_probe.taking()
        return contextlib.nullcontext(self._probe.take)

    def parameters(self, arm: str, begin_ns: Sequence[int]) -> list[tuple[int, int]]:
        """BlockRecord.parameters of the ddp_solo block that just ran; empty for other arms."""
        if arm != DDP_SOLO or self._solo_probe is None:
            return []
        return self._solo_probe.parameters(begin_ns)

    def stamps(self, arm: str, *, detailed: bool) -> int:
        """Largest number of stamps in a step of the arm."""
        loop = self.loop(arm, detailed=detailed)
        return loop.stamps + (
            2 * max(len(self.buckets()), len(self.wire())) * loop.micro_steps if detailed else 0
        )

    def loops(self) -> list[Loop]:
        """All loops of the trial."""
        found = (self.bare, self.half, self.plain, self.variant, self.solo, self.detailed)
        return [loop for loop in found if loop is not None]

    def feed(self, arm: str) -> Feed:
        """The feed of an arm."""
        return self._variant_feed if arm == VARIANT else self._feed

    def feeds(self) -> list[Feed]:
        """All feeds of the trial."""
        return list({id(feed): feed for feed in (self._feed, self._variant_feed)}.values())

    def wire(self) -> list[int]:
        """Bytes of each all-reduce of a step, in the order of launch. A communication hook may change them."""
        return (self._probe.wire if self.detailed is not None else []) or self.buckets()

    def buckets(self) -> list[int]:
        """Bytes of each bucket, in the order of reduction."""
        return bucket_bytes(self._plain_ddp)
