"""What each arm of steps runs: the bare module, DDP over one rank, DDP over the group."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.plan import Trial
from scaling.records import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE
from scaling.spec import Spec
from scaling.worker.devices import Device
from scaling.worker.groups import Groups
from scaling.worker.inject import Faults
from scaling.worker.precision import Precision
from scaling.worker.probe import BucketProbe, SoloProbe, Take, bucket_bytes
from scaling.worker.step import Loop
from scaling.worker.workload import Workload

BATCHES = 4
"""Made once and used in turn."""

DEFAULT_BUCKET_MB = 25
"""torch's default, MiB."""


class Arms:
    """All step loops of one trial on one rank. Wrappers share the module; only one is in use at a time."""

    def __init__(
        self,
        *,
        spec: Spec,
        trial: Trial,
        workload: Workload,
        groups: Groups,
        device: Device,
        precision: Precision,
        faults: Faults,
        rank: int,
    ) -> None:
        generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + rank)
        micro_batch = trial.batch // spec.accumulation_steps
        batches = [device.stage(workload.make_batch(micro_batch, generator)) for _ in range(BATCHES)]
        loop = functools.partial(
            Loop,
            workload=workload,
            optimizer=workload.optimizer(workload.module.parameters()),
            batches=batches,
            accumulation=spec.accumulation_steps,
            device=device,
            precision=precision,
            faults=faults,
        )
        wrap = functools.partial(
            DistributedDataParallel,
            workload.module,
            # Given a number, DDP sizes its first bucket by it too; only None gives its own default
            # of a first bucket of 1 MiB.
            bucket_cap_mb=None if spec.ddp.bucket_cap_mb == DEFAULT_BUCKET_MB else spec.ddp.bucket_cap_mb,
            gradient_as_bucket_view=spec.ddp.gradient_as_bucket_view,
            static_graph=spec.ddp.static_graph,
            find_unused_parameters=spec.ddp.find_unused_parameters,
        )
        n = trial.world_size
        self._device = device
        self.bare = loop(module=workload.module)
        self._plain_ddp = wrap(process_group=groups.data[n])
        self.plain = loop(module=self._plain_ddp)
        self.solo: Loop | None = None
        self.detailed: Loop | None = None
        if n > 1:
            self._solo_ddp = wrap(process_group=groups.solo)
            self.solo = loop(module=self._solo_ddp)
            detailed = wrap(process_group=groups.data[n])
            self._probe = BucketProbe(detailed, groups.data[n], n, device)
            self.detailed = loop(module=detailed)

    def loop(self, arm: str, *, detailed: bool) -> Loop:
        """The loop of a step arm. The light probe runs on the plain wrapper: its stamps register no hook there."""
        if arm in (BARE_ONE, BARE_ALL):
            return self.bare
        found = {
            PLAIN: self.plain,
            DDP_SOLO: self.solo,
            PROBE: self.detailed if detailed else self.plain,
        }[arm]
        assert found is not None
        return found

    def taking(self, arm: str, *, detailed: bool) -> contextlib.AbstractContextManager[Take | None]:
        """What collects a detailed step's buckets, while it can."""
        if not detailed:
            return contextlib.nullcontext()
        if arm == DDP_SOLO:
            return SoloProbe(self._solo_ddp, self._device).taking()
        return contextlib.nullcontext(self._probe.take)

    def stamps(self, arm: str, *, detailed: bool) -> int:
        """How many a step of the arm takes at most."""
        loop = self.loop(arm, detailed=detailed)
        return loop.stamps + (2 * len(self.buckets()) * loop.micro_steps if detailed else 0)

    def buckets(self) -> list[int]:
        """Bytes of each bucket, in the order of reduction."""
        return bucket_bytes(self._plain_ddp)
