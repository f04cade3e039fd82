"""A schedule of torch.distributed.pipelining in a user's loop: its stages on this rank, and whom it talks to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from scaling.spec.parallel import PIPELINED, REST, Parallel, Pipeline, pair_key
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.message_probe import MessageProbe
from scaling.worker.parallel.pipeline import Schedule
from scaling.worker.parallel.strategy import Detail
from scaling.worker.parallel.tap import backend_of


class PipelinedModel:
    """A schedule, as a probe sees it (probe.followed.Followed)."""

    hooks_first = False
    sends_buffers = False

    def __init__(self, schedule: Any) -> None:
        self.schedule = Schedule(schedule)
        self.stages = torch.nn.ModuleList([stage.submod for stage in self.schedule.stages])
        self.members = list(dist.get_process_group_ranks(self.schedule.group))

    @property
    def root(self) -> torch.nn.Module:
        """The rank's stages."""
        return self.stages

    @property
    def module(self) -> torch.nn.Module:
        """The same."""
        return self.stages

    @property
    def backend(self) -> str:
        """The back end that carries the messages."""
        return backend_of(self.schedule.group, next(self.stages.parameters()).device.type)

    @property
    def dtype(self) -> torch.dtype:
        """The type in which it computes."""
        return next(self.stages.parameters()).dtype

    def will_send_buffers(self) -> bool:
        """Stages share none."""
        return False

    def reduces(self) -> bool:
        """A step of the schedule is a whole one."""
        return False

    def detail(self, device: Accelerator, *, detailed: bool) -> Detail | None:
        """Where the rank waits, and in detailed blocks every message."""
        return MessageProbe(self.schedule, self._keys(), device, detailed=detailed)

    def sizes(self) -> list[int]:
        """Nothing is sent together."""
        return []

    def groups(self) -> Mapping[int, Sequence[int]]:
        """The rank's pairs."""
        return {key: sorted((self._place, peer)) for peer, key in self._keys().items()}

    def settings(self) -> dict[str, Any]:
        """The mesh and the schedule."""
        return {
            "parallel": Parallel(name=PIPELINED, replicate=1, pipeline=REST),
            "pipeline": Pipeline(schedule=self.schedule.name, stages_per_rank=len(self.stages)),
        }

    def refused(self) -> str:
        """Why it cannot be followed, if it cannot."""
        if not self.schedule.known:
            return "this version of torch hands messages over in a way that is not known here"
        if not any(True for _ in self.stages.parameters()):
            return "the stages of a rank have no parameters"
        if any(isinstance(one, DistributedDataParallel | FSDPModule) for one in self.stages.modules()):
            return "its stages are replicated or sharded as well, which is not followed"
        return ""

    def no_baseline(self) -> str:
        """A baseline needs the whole model on every rank."""
        return "no rank has the whole of a model that is divided into stages"

    @property
    def _place(self) -> int:
        return int(self.schedule.stages[0].group_rank)

    def _keys(self) -> dict[int, int]:
        """Of the pairs in the records, by the peer."""
        return {peer: pair_key(self._place, peer) for peer in self.schedule.peers}
