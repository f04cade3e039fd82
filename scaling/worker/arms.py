"""What each arm of steps runs: the bare module, DDP over one rank, DDP over the group."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.plan import Trial, half_batch
from scaling.records import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE, STEP_ARMS, VARIANT
from scaling.spec import DEFAULT_BUCKET_MB, Ddp, Spec
from scaling.worker.compression import WIRE, register
from scaling.worker.devices import Device
from scaling.worker.feed import Feed
from scaling.worker.groups import Group
from scaling.worker.inject import Faults
from scaling.worker.options import compiled, loading
from scaling.worker.precision import Precision
from scaling.worker.probe import BucketProbe, SoloProbe, Take, bucket_bytes
from scaling.worker.step import Loop
from scaling.worker.workload import Workload


def wrapped(module: torch.nn.Module, ddp: Ddp, group: dist.ProcessGroup) -> DistributedDataParallel:
    """The module as DDP over a group."""
    return DistributedDataParallel(
        module,
        process_group=group,
        # Given a number, DDP sizes its first bucket by it too; only None gives its own default
        # of a first bucket of 1 MiB.
        bucket_cap_mb=None if ddp.bucket_cap_mb == DEFAULT_BUCKET_MB else ddp.bucket_cap_mb,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
        static_graph=ddp.static_graph,
        find_unused_parameters=ddp.find_unused_parameters,
    )


class Settings:
    """How a spec wraps and feeds the module at one world size. Several may share the module and its optimizer.

    Wrappers share it too, unless DDP keeps count of gradients from backward to backward (`static_graph`) or of
    parameters that had one (`find_unused_parameters`): it counts those of other wrappers and of bare steps then,
    reduces nothing or in their midst, and so each wrapper has a copy of its own.
    """

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
        """`feed` gives what batches of so many samples come from."""
        self._feed_of, self._accumulation = feed, spec.accumulation_steps
        self.feed = feed(spec.batch_at(trial.world_size) // spec.accumulation_steps)
        self.load = loading(spec, device.load)
        self._loop = functools.partial(
            Loop,
            workload=workload,
            accumulation=spec.accumulation_steps,
            device=device,
            precision=precision,
            faults=faults,
            load=self.load,
        )
        self._module, self._ddp, self._compile = workload.module, spec.ddp, spec.compile
        self._optimizer, self._optimizer_of = optimizer, workload.optimizer
        self._apart = spec.ddp.static_graph or spec.ddp.find_unused_parameters

    def loop(self, module: torch.nn.Module, batch: int | None = None) -> Loop:
        """The steps of a module, bare or wrapped; `batch`: of so many samples instead of the trial's."""
        feed = self.feed if batch is None else self._feed_of(batch // self._accumulation)
        own = self._apart and isinstance(module, DistributedDataParallel)
        optimizer = self._optimizer_of(module.parameters()) if own else self._optimizer
        return self._loop(module=module, optimizer=optimizer, fetch=feed.fetch)

    def module(self) -> torch.nn.Module:
        """As a bare step has it."""
        return compiled(self._module) if self._compile else self._module

    def wrap(self, group: dist.ProcessGroup) -> DistributedDataParallel:
        """The module as DDP over a group, without a communication hook."""
        if not self._apart:
            return wrapped(self.module(), self._ddp, group)
        module = copy.deepcopy(self._module)
        return wrapped(compiled(module) if self._compile else module, self._ddp, group)

    def ddp(self, group: dist.ProcessGroup) -> DistributedDataParallel:
        """The module as the user trains it."""
        wrapper = self.wrap(group)
        register(wrapper, self._ddp.comm_hook, group)
        return wrapper


class Arms:
    """All step loops of one trial on one rank. Wrappers share the module; only one is in use at a time."""

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
    ) -> None:
        """`meet`: called between what a rank makes by itself, in its own time, and the wrappers, made together."""
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
        self.wire_dtype = WIRE.get(spec.ddp.comm_hook, torch.float32)
        """Of what is reduced."""
        self.bare = own.loop(own.module())
        self._half_batch = half_batch(spec)
        self.half: Loop | None = None
        if other is None and n > 1 and self._half_batch is not None:
            self.half = own.loop(own.module(), self._half_batch)
        meet()
        before = device.foreign_bytes()
        self._plain_ddp = own.ddp(group)
        after = device.foreign_bytes()
        self.communicator_bytes = None if before is None or after is None else max(0, after - before)
        """By how much device memory that torch does not know of grew with the first wrapper over the group."""
        self.plain = own.loop(self._plain_ddp)
        self.variant: Loop | None = None
        self.solo: Loop | None = None
        self.detailed: Loop | None = None
        if other is not None:
            self._variant_feed = other.feed
            self.variant = other.loop(other.ddp(group))
        elif n > 1:
            self._solo_ddp = own.ddp(groups[1].data)
            self._solo_probe: SoloProbe | None = None
            self.solo = own.loop(self._solo_ddp)
            detailed = own.wrap(group)
            self._probe = BucketProbe(detailed, group, n, device, spec.ddp.comm_hook)
            self.detailed = own.loop(detailed)

    def loop(self, arm: str, *, detailed: bool, batch: int | None = None) -> Loop:
        """The loop of a step arm. The light probe runs on the plain wrapper: its stamps register no hook there.

        `batch`: of the block, which may be half of the trial's.
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
        """Of one optimizer step; replay and sweep go by the spec's."""
        return self.loop(arm, detailed=False).micro_steps if arm in STEP_ARMS else self.plain.micro_steps

    def taking(self, arm: str, *, detailed: bool) -> contextlib.AbstractContextManager[Take | None]:
        """What collects a detailed step's buckets, while it can."""
        if not detailed:
            return contextlib.nullcontext()
        if arm == DDP_SOLO:
            self._solo_probe = SoloProbe(self._solo_ddp, self._device)
            return self._solo_probe.taking()
        return contextlib.nullcontext(self._probe.take)

    def parameters(self, arm: str, begin_ns: Sequence[int]) -> list[list[int]]:
        """[bytes, ready] of every parameter, as the ddp_solo block that just ran has them; else empty."""
        if arm != DDP_SOLO or self._solo_probe is None:
            return []
        return self._solo_probe.parameters(begin_ns)

    def stamps(self, arm: str, *, detailed: bool) -> int:
        """How many a step of the arm takes at most."""
        loop = self.loop(arm, detailed=detailed)
        return loop.stamps + (
            2 * max(len(self.buckets()), len(self.wire())) * loop.micro_steps if detailed else 0
        )

    def loops(self) -> list[Loop]:
        """All there are."""
        found = (self.bare, self.half, self.plain, self.variant, self.solo, self.detailed)
        return [loop for loop in found if loop is not None]

    def feed(self, arm: str) -> Feed:
        """What the arm's batches come from."""
        return self._variant_feed if arm == VARIANT else self._feed

    def feeds(self) -> list[Feed]:
        """All there are."""
        return list({id(feed): feed for feed in (self._feed, self._variant_feed)}.values())

    def wire(self) -> list[int]:
        """Bytes of each all-reduce of a step, in the order of launch; a communication hook can change them."""
        return (self._probe.wire if self.detailed is not None else []) or self.buckets()

    def buckets(self) -> list[int]:
        """Bytes of each bucket, in the order of reduction."""
        return bucket_bytes(self._plain_ddp)
