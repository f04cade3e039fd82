"""What each arm of steps runs: the bare module, DDP over one rank, DDP over the group."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.plan import Trial
from scaling.records import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE, STEP_ARMS, VARIANT
from scaling.spec import DEFAULT_BUCKET_MB, Ddp, Spec
from scaling.worker.devices import Device
from scaling.worker.groups import Groups
from scaling.worker.inject import Faults
from scaling.worker.precision import Precision
from scaling.worker.probe import BucketProbe, SoloProbe, Take, bucket_bytes
from scaling.worker.step import Loop
from scaling.worker.workload import Workload

BATCHES = 4
"""Made once and used in turn."""


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
    """How a spec wraps and feeds the module at one world size. Several may share the module and its optimizer."""

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
        rank: int,
    ) -> None:
        generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + rank)
        micro_batch = spec.batch_at(trial.world_size) // spec.accumulation_steps
        batches = [device.stage(workload.make_batch(micro_batch, generator)) for _ in range(BATCHES)]
        self._loop = functools.partial(
            Loop,
            workload=workload,
            optimizer=optimizer,
            batches=batches,
            accumulation=spec.accumulation_steps,
            device=device,
            precision=precision,
            faults=faults,
        )
        self._module, self._ddp = workload.module, spec.ddp

    def loop(self, module: torch.nn.Module) -> Loop:
        """The steps of a module, bare or wrapped."""
        return self._loop(module=module)

    def wrap(self, group: dist.ProcessGroup) -> DistributedDataParallel:
        """The module as DDP over a group."""
        return wrapped(self._module, self._ddp, group)


class Arms:
    """All step loops of one trial on one rank. Wrappers share the module; only one is in use at a time."""

    def __init__(
        self,
        *,
        spec: Spec,
        variant: Spec | None,
        trial: Trial,
        workload: Workload,
        groups: Groups,
        device: Device,
        precision: Precision,
        faults: Faults,
        rank: int,
    ) -> None:
        n, group = trial.world_size, groups.data[trial.world_size]
        settings = functools.partial(
            Settings,
            trial=trial,
            workload=workload,
            optimizer=workload.optimizer(workload.module.parameters()),
            device=device,
            precision=precision,
            faults=faults,
            rank=rank,
        )
        own = settings(spec)
        self._device = device
        self.bare = own.loop(workload.module)
        self._plain_ddp = own.wrap(group)
        self.plain = own.loop(self._plain_ddp)
        self.variant: Loop | None = None
        self.solo: Loop | None = None
        self.detailed: Loop | None = None
        if variant is not None:
            other = settings(variant)
            self.variant = other.loop(other.wrap(group))
        elif n > 1:
            self._solo_ddp = own.wrap(groups.solo)
            self._solo_probe: SoloProbe | None = None
            self.solo = own.loop(self._solo_ddp)
            detailed = own.wrap(group)
            self._probe = BucketProbe(detailed, group, n, device)
            self.detailed = own.loop(detailed)

    def loop(self, arm: str, *, detailed: bool) -> Loop:
        """The loop of a step arm. The light probe runs on the plain wrapper: its stamps register no hook there."""
        if arm in (BARE_ONE, BARE_ALL):
            return self.bare
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
        return loop.stamps + (2 * len(self.buckets()) * loop.micro_steps if detailed else 0)

    def buckets(self) -> list[int]:
        """Bytes of each bucket, in the order of reduction."""
        return bucket_bytes(self._plain_ddp)
