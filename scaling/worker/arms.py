"""What each arm runs: the bare module, DDP over one rank, DDP over the group, and collectives alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.plan import Trial
from scaling.records import BARE_ALL, BARE_ONE, COLLECTIVES, DDP_SOLO, PLAIN, PROBE
from scaling.spec import Spec
from scaling.worker.clock import now_ns
from scaling.worker.inject import Faults
from scaling.worker.probe import BucketProbe, SoloProbe, bucket_bytes
from scaling.worker.step import Loop
from scaling.worker.workload import Workload

BATCHES = 4
"""Made once and used in turn."""

DEFAULT_BUCKET_MB = 25
"""torch's default, MiB."""

_ALL_REDUCE = COLLECTIVES.index("all_reduce")


class Arms:
    """All step loops of one trial on one rank. Wrappers share the module; only one is in use at a time."""

    def __init__(
        self,
        *,
        spec: Spec,
        trial: Trial,
        workload: Workload,
        group: Any,
        solo: Any,
        faults: Faults,
        rank: int,
    ) -> None:
        generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + rank)
        micro_batch = trial.batch // spec.accumulation_steps
        batches = [workload.make_batch(micro_batch, generator) for _ in range(BATCHES)]
        optimizer = workload.optimizer(workload.module.parameters())

        def loop(module: torch.nn.Module) -> Loop:
            return Loop(
                workload=workload,
                module=module,
                optimizer=optimizer,
                batches=batches,
                accumulation=spec.accumulation_steps,
                autocast=_autocast(spec.precision),
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
        self.group = group
        self.bare = loop(workload.module)
        self._plain_ddp = wrap(process_group=group)
        self.plain = loop(self._plain_ddp)
        self.solo: Loop | None = None
        self.detailed: Loop | None = None
        if trial.world_size > 1:
            self._solo_ddp = wrap(process_group=solo)
            self.solo = loop(self._solo_ddp)
            detailed = wrap(process_group=group)
            self._probe = BucketProbe(detailed, group, trial.world_size)
            self.detailed = loop(detailed)

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

    def take(self, arm: str) -> Callable[[int], list[list[int]]]:
        """What collects a detailed step's buckets."""
        return SoloProbe(self._solo_ddp).take if arm == DDP_SOLO else self._probe.take

    def buckets(self) -> list[int]:
        """Bytes of each bucket, in the order of reduction."""
        return bucket_bytes(self._plain_ddp)


def all_reduce_row(buffer: torch.Tensor, size: int, group: Any, group_key: int, seq: int) -> list[int]:
    """All-reduce `size` bytes of `buffer` alone and stamp it."""
    part = buffer[: max(1, size // 4)]
    launch = now_ns()
    dist.all_reduce(part, group=group)
    return [seq, _ALL_REDUCE, group_key, part.numel() * 4, launch, launch, now_ns()]


def _autocast(precision: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    if precision == "bf16":
        return functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext
