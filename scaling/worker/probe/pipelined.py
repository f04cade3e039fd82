"""A schedule of torch.distributed.pipelining in a user's loop: how long its steps take, and no more.

Ranks of a pipeline do not do alike, and torch has no hooks where a rank waits for the next stage. So its steps have no
phases, no rank is called late, and nothing is told of its messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from scaling.settings.parallel import PIPELINED, REST, Parallel, Pipeline
from scaling.worker.parallel.tap import backend_of
from scaling.worker.probe.followed import Unstamped
from scaling.worker.probe.phases import StepMarks


def is_schedule(model: Any) -> bool:
    """Whether `model` is a schedule; torch's module is not loaded for it."""
    schedules = sys.modules.get("torch.distributed.pipelining.schedules")
    kind = getattr(schedules, "_PipelineSchedule", None)
    return kind is not None and isinstance(model, kind)


class PipelinedModel(Unstamped):
    """A schedule, as a probe sees it (probe.followed.Followed)."""

    reduces_behind = False

    def __init__(self, schedule: Any) -> None:
        stages = list(getattr(schedule, "_stages", None) or [schedule._stage])  # noqa: SLF001
        self._name = type(schedule).__name__
        self._group: Any = stages[0].group or dist.group.WORLD
        self.stages = torch.nn.ModuleList([stage.submod for stage in stages])
        self.members = list(dist.get_process_group_ranks(self._group))

    @property
    def root(self) -> torch.nn.Module:
        """The rank's stages."""
        return self.stages

    @property
    def module(self) -> torch.nn.Module:
        """The rank's stages."""
        return self.stages

    @property
    def backend(self) -> str:
        """The back end that carries the messages."""
        return backend_of(self._group, next(self.stages.parameters()).device.type)

    def reduces(self) -> bool:
        """A step of the schedule is a whole one."""
        return True

    def settings(self) -> dict[str, Any]:
        """The mesh and the schedule."""
        return {
            "parallel": Parallel(name=PIPELINED, replicate=1, pipeline=REST),
            "pipeline": Pipeline(schedule=self._name, stages_per_rank=len(self.stages)),
        }

    def refused(self) -> str:
        """Why it cannot be followed, if it cannot."""
        if not any(True for _ in self.stages.parameters()):
            return "the stages of a rank have no parameters"
        if any(isinstance(one, DistributedDataParallel | FSDPModule) for one in self.stages.modules()):
            return "its stages are replicated or sharded as well, which is not followed"
        return ""

    def no_baseline(self) -> str:
        """A baseline needs the whole model on every rank."""
        return "no rank has the whole of a model that is divided into stages"


class PipelineMarks(StepMarks):
    """Counts a schedule's microbatches as micro-steps."""

    finds_phases = False

    def __init__(self, followed: PipelinedModel, stamp: Callable[[], int]) -> None:
        super().__init__(followed, stamp)
        first = followed.stages[0]
        self._handles.append(first.register_forward_pre_hook(self._before_forward, with_kwargs=True))

    def _before_forward(self, _module: Any, args: Any, kwargs: Any) -> None:
        if not self.inside:
            self._outside()
        elif torch.is_grad_enabled():
            self._count(args, kwargs)
