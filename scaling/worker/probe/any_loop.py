"""A loop of which only its outermost modules are known: FSDP1, replicate, tensor parallel, ZeRO, calls of its own.

Its steps have phases and waits (parallel.waits.Waits) as those of any loop. Which collective sends what, nobody tells,
so no buckets or units are recorded. So it is with a schedule of torch.distributed.pipelining, whose modules are its
stages.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._composable.contract import _get_registry
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import let_go
from scaling.records.format import DISTURBS
from scaling.settings.parallel import OWN, PIPELINED, REST, Parallel, Pipeline
from scaling.worker.accelerator import cuda
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.guard import Guard, guarded
from scaling.worker.parallel.strategy import Detail
from scaling.worker.parallel.streams import one_queue, withheld
from scaling.worker.parallel.tap import backend_of
from scaling.worker.parallel.torch_private import in_backward


class Followed:
    """A module that a loop trains, as a probe sees it: all ranks of the default group train it together.

    What a kind of wrapper tells beyond that is its subclass's (probe.follow).
    """

    sends_buffers = False
    """Whether forwards may begin with a broadcast of the buffers."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.root = module
        """What the loop calls, without torch.compile: a wrapper, or the module itself."""
        self.module = _innermost(module)
        """The user's own module: without an engine or a wrapper around it."""
        together = dist.is_available() and dist.is_initialized()
        self.members = list(range(dist.get_world_size())) if together else [0]
        """Its ranks in the default group. Their places in it are the ranks of the records."""
        self._group: Any = dist.group.WORLD if together else None

    @property
    def reduces_behind(self) -> bool:
        """Whether a rank waits in C++ between the end of backward's compute and of backward, for DDP's reducer."""
        return any(
            isinstance(part, DistributedDataParallel) or "replicate" in (_get_registry(part) or ())
            for part in self.root.modules()
        )

    @property
    def backend(self) -> str:
        """The back end that carries the gradients; without a group, that which its device would have."""
        device = next(self.root.parameters()).device.type
        if self._group is None:
            return "nccl" if device == cuda.TYPE else "gloo"
        return backend_of(self._group, device)

    @property
    def dtype(self) -> torch.dtype:
        """The type in which it computes, without autocast."""
        return next(self.root.parameters()).dtype

    def reduces(self) -> bool:
        """Whether the backward of the forward that begins now completes the gradients' reduction, as far as known."""
        return False

    def communicators(self) -> list[Any]:
        """The process groups whose collectives are stamped."""
        return []

    def withheld(self, device: Accelerator) -> str:
        """Why its collectives are not to be stamped (BlockRecord.withheld), as this rank sees it.

        Without any to stamp: with one work queue waits look like compute.
        """
        if groups := self.communicators():
            return withheld(groups, self.streams(device), device)
        return DISTURBS if len(self.members) > 1 and one_queue(device) else ""

    def streams(self, device: Accelerator) -> Sequence[Any]:  # noqa: ARG002
        """Streams that are stamped beside those of the communicators."""
        return ()

    def detail(self, device: Accelerator) -> Detail:  # noqa: ARG002
        """What a detailed block records of single collectives."""
        return Detail()

    def sizes(self) -> list[int]:
        """Bytes of each bucket or unit."""
        return []

    def groups(self) -> Mapping[int, Sequence[int]]:
        """Communicators of this rank by their key in the records, beside the one of all ranks, with their ranks."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Fields of the Spec that say how it is trained over ranks. Every rank has samples of its own."""
        return {"parallel": Parallel(name=OWN, replicate=REST)}

    def no_baseline(self) -> str:
        """Why `Probe.baseline` measures nothing; empty where it does."""
        return "only a DistributedDataParallel can be trained by one rank alone beside the loop"


def _innermost(module: torch.nn.Module) -> torch.nn.Module:
    seen = {id(module)}
    while isinstance(within := getattr(module, "module", None), torch.nn.Module):
        if id(within) in seen:  # a model without a wrapper that names itself
            break
        module = within
        seen.add(id(module))
    return module


def stages_of(model: Any) -> torch.nn.ModuleList | None:
    """A rank's stages, where `model` is a schedule; torch's module is not loaded for it."""
    schedules = sys.modules.get("torch.distributed.pipelining.schedules")
    kind: Any = getattr(schedules, "_PipelineSchedule", ())
    if not isinstance(model, kind):
        return None
    return torch.nn.ModuleList([stage.submod for stage in _stages(model)])


def _stages(schedule: Any) -> list[Any]:
    return getattr(schedule, "_stages", None) or [schedule._stage]  # noqa: SLF001


class Scheduled(Followed):
    """The stages of a schedule. Where they go over all ranks, these have the samples of a step together."""

    def __init__(self, stages: torch.nn.ModuleList, schedule: Any) -> None:
        super().__init__(stages)
        over = dist.get_process_group_ranks(_stages(schedule)[0].group or dist.group.WORLD)
        self._pipeline = Pipeline(schedule=type(schedule).__name__, stages_per_rank=len(stages))
        self._whole = sorted(over) == self.members

    def settings(self) -> dict[str, Any]:
        """The mesh and the schedule; copies of a pipeline are a loop like any other."""
        if not self._whole:
            return super().settings()
        return {"parallel": Parallel(name=PIPELINED, replicate=1, pipeline=REST), "pipeline": self._pipeline}


class Outermost:
    """Finds the modules with parameters that a loop calls, and not those that these call."""

    def __init__(self, told: Callable[[Exception], None]) -> None:
        """`told`: whom an error in between is told; the training does not depend on it."""
        self._told, self._earlier, Guard.told = told, Guard.told, told
        self._thread, self._depth = threading.get_ident(), 0
        self._seen: weakref.WeakKeyDictionary[torch.nn.Module, None] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = [
            register_module_forward_pre_hook(guarded(self._before)),
            register_module_forward_hook(guarded(self._after), always_call=True),
        ]

    def close(self) -> None:
        """Remove the hooks, which every call of a module passes."""
        while self._handles:
            self._handles.pop().remove()
        if Guard.told == self._told:
            Guard.told = self._earlier

    @property
    def modules(self) -> list[torch.nn.Module]:
        """Those that were called with gradients, the largest first."""
        return sorted(self._seen, key=size_of, reverse=True)

    def trained_by(self, optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
        """The modules of an optimizer, the largest first; all of them where it steps copies of their parameters."""
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        mine = [module for module in self._seen if any(id(p) in stepped for p in module.parameters())]
        return sorted(mine, key=size_of, reverse=True) if mine else self.modules

    def _passes(self) -> bool:
        return torch.compiler.is_compiling() or in_backward() or threading.get_ident() != self._thread

    def _before(self, module: torch.nn.Module, _args: Any) -> None:
        if self._passes():
            return
        self._depth += 1
        if self._depth == 1 and torch.is_grad_enabled():
            with let_go():  # its `parameters` are its own, so it cannot be followed
                if any(parameter.requires_grad for parameter in module.parameters()):
                    self._seen[module] = None

    def _after(self, _module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if not self._passes():
            self._depth = max(0, self._depth - 1)


def size_of(model: torch.nn.Module) -> tuple[int, int]:
    """Elements of its parameters, and its modules: of a sharded model and its only unit the model is the larger."""
    numbers = (
        getattr(p, "ds_numel", 0) or p.numel() for p in model.parameters()
    )  # ZeRO-3's are empty between uses
    return sum(numbers), sum(1 for _ in model.modules())
