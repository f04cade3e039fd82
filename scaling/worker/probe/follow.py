"""Which models a probe can follow, and how each is trained over ranks: the only place that knows all of them.

A DistributedDataParallel tells its buckets, and how it accumulates. A module that fully_shard was called on tells its
units and its mesh. Of any other loop only its outermost modules are known: FSDP1, replicate, tensor parallel, ZeRO,
calls of its own. Its steps have phases and waits (parallel.waits.Waits) as those of any loop. Which collective sends
what, nobody tells, so no buckets or units are recorded. So it is with a schedule of torch.distributed.pipelining, whose
modules are its stages.
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
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import InputError, let_go
from scaling.records.format import DISTURBS
from scaling.settings.parallel import OWN, PIPELINED, REST, Fsdp, Mesh, Parallel, Pipeline
from scaling.worker.accelerator import cuda
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.ddp import BucketDetail, Norms, bucket_bytes, sends_buffers, settings_of
from scaling.worker.parallel.fsdp_waits import UnitProbe, Watch
from scaling.worker.parallel.guard import Guard, guarded
from scaling.worker.parallel.guard import compiled as is_compiled
from scaling.worker.parallel.strategy import Detail
from scaling.worker.parallel.streams import one_queue, withheld
from scaling.worker.parallel.tap import HOST_BACKENDS, Tap, backend_of
from scaling.worker.parallel.torch_private import in_backward, param_groups, reduces_alone, whole_bytes


class Followed:
    """A module that a loop trains, as a probe sees it: all ranks of the default group train it together.

    What a kind of wrapper tells beyond that is its subclass's.
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

    @property
    def devices(self) -> set[torch.device]:
        """Where its parameters are, and where FSDP computes with those that it keeps on the host."""
        parts = list(self.root.modules())
        computing: set[Any] = {
            part.compute_device for part in parts if isinstance(part, FullyShardedDataParallel)
        }
        computing |= {g.device for part in parts if isinstance(part, FSDPModule) for g in param_groups(part)}
        return computing | {parameter.device for parameter in self.root.parameters()}

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
    seen = {id(module)}  # a model without a wrapper may name itself
    while isinstance(within := getattr(module, "module", None), torch.nn.Module) and id(within) not in seen:
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


class WrappedModel(Followed):
    """DDP's wrapper: what the loop calls, or all that is trained of it, as in the tasks of timm."""

    def __init__(self, ddp: DistributedDataParallel, called: Any) -> None:
        """`called`: by the loop."""
        super().__init__(ddp)
        self.ddp, self.module, self._group = ddp, ddp.module, ddp.process_group
        self._compiled = is_compiled(called)
        self._inside = getattr(called, "_orig_mod", called) is not ddp
        """Whether it is a part of what the loop calls."""
        self.members = list(dist.get_process_group_ranks(ddp.process_group))
        self.sends_buffers = sends_buffers(ddp)
        self._norms = Norms(ddp.module)

    def reduces(self) -> bool:
        """Whether the next backward reduces."""
        return bool(self.ddp.require_backward_grad_sync)

    def communicators(self) -> list[Any]:
        """DDP's own."""
        return [self.ddp.process_group]

    def detail(self, device: Accelerator) -> Detail:
        """Its buckets, and where its norms wait for other ranks."""
        norms = self._norms if self._waits_inside() else None
        return BucketDetail(self.ddp, Tap(device.clock), norms=norms)

    def _waits_inside(self) -> bool:
        """Whether norms wait for the wrapper's ranks, and that can be seen: not in what torch.compile made."""
        if not len(self._norms) or len(self.members) == 1 or self._compiled:
            return False
        return self._norms.are_over(self.ddp.process_group) and not any(map(is_compiled, self.ddp.modules()))

    def sizes(self) -> list[int]:
        """Bytes of each bucket."""
        return bucket_bytes(self.ddp)

    def settings(self) -> dict[str, Any]:
        """The wrapper's settings."""
        return {"ddp": settings_of(self.ddp)}

    def no_baseline(self) -> str:
        """Where DDP or a layer counts on every backward being the training's, or the loop calls more than DDP."""
        if self._inside:
            return "the loop calls a module that holds the wrapper, and a step cannot be given another one"
        if self.ddp.static_graph or self.ddp.find_unused_parameters:
            return (
                "with static_graph or find_unused_parameters DDP counts gradients from backward to backward, and "
                "would count those of the baseline in the training"
            )
        if len(self._norms):
            return "SyncBatchNorm waits for the other ranks, and a rank alone has none"
        return ""


class ShardedModel(Followed):
    """A sharded module. Over two axes of ranks it is HSDP's."""

    reduces_behind = False

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.module = module  # fully_shard wraps nothing
        self._units = [part for part in module.modules() if isinstance(part, FSDPModule)]
        self._groups = list({id(g): g for unit in self._units for g in param_groups(unit)}.values())
        self._info: Any = self._groups[0].mesh_info if self._groups else None
        self.members: list[int] = self._info.mesh.mesh.flatten().tolist() if self._info else [0]
        self._group = getattr(self._info, "shard_process_group", self._group)
        # The loop may destroy the group before the records end.
        self._place = self.members.index(dist.get_rank()) if self._info else 0
        self._watch: Watch | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type in which it computes."""
        return self._groups[0].mp_policy.param_dtype or next(self.root.parameters()).dtype

    def reduces(self) -> bool:
        """Some unit sums its gradients over all ranks; without set_requires_all_reduce HSDP does so over the shards."""
        return any(g.reduce_grads and (g.all_reduce_grads or not g._is_hsdp) for g in self._groups)  # noqa: SLF001

    def communicators(self) -> list[Any]:
        """Those of the mesh's axes."""
        return list(self._over.values())

    def streams(self, device: Accelerator) -> Sequence[Any]:
        """Those on which fully_shard starts its collectives."""
        return self._stamped(device).streams()

    def _stamped(self, device: Accelerator) -> Watch:
        host = self.backend in HOST_BACKENDS
        self._watch = self._watch or Watch(self._groups, device.clock.stamp, host=host, weighs=False)
        return self._watch

    def detail(self, device: Accelerator) -> Detail:
        """Every collective, with its unit and where the rank waits for it."""
        watch, mesh, place = self._stamped(device), self._mesh, self._place
        if mesh.size == 1:
            return Detail()
        by_key, keys = mesh.made_by_torch(place, self._fsdp), mesh.keys()
        others = {tuple(self.members[r] for r in ranks): key for key, ranks in by_key.items()}
        names = {group.group_name: keys.get(axis, 1) for axis, group in self._over.items()}
        return UnitProbe(watch, names, device, others=others)

    def sizes(self) -> list[int]:
        """Bytes of each unit, whole."""
        return list(map(whole_bytes, self._groups))

    def groups(self) -> Mapping[int, Sequence[int]]:
        """The communicators of the mesh's axes, and those that torch made beside them."""
        mesh, place = self._mesh, self._place
        axes, keys = mesh.axes(), mesh.keys()
        axis_groups = {keys[axis]: next(g for g in groups if place in g) for axis, groups in axes.items()}
        return axis_groups | mesh.made_by_torch(place, self._fsdp)

    def settings(self) -> dict[str, Any]:
        """The mesh, and how fully_shard was called."""
        mesh = self._mesh
        if self._replicated:
            parallel = Parallel(name="hsdp", replicate=mesh.replicate, shard=mesh.shard)
        else:
            parallel = Parallel(name="fsdp", replicate=1, shard=-1)
        return {"parallel": parallel, "fsdp": self._fsdp}

    @property
    def known(self) -> bool:
        """Whether all units are sharded over one mesh of shards and copies, and no layer is divided as well."""
        if not hasattr(self._info, "shard_process_group") or self._info.mesh.ndim > 2:
            return False
        if any(group.mesh_info.mesh != self._info.mesh for group in self._groups):  # experts, for instance
            return False
        tensors = (p for p in self.root.parameters() if isinstance(p, DTensor))
        return all(p.device_mesh.ndim <= self._info.mesh.ndim for p in tensors)

    def no_baseline(self) -> str:
        """A baseline needs the whole model on every rank."""
        return "no rank has the whole of a sharded model; `scaling run parallel=fsdp` measures one rank alone beside it"

    @property
    def _replicated(self) -> bool:
        return bool(self._groups[0]._is_hsdp)  # noqa: SLF001

    @property
    def _mesh(self) -> Mesh:
        copies = self._info.replicate_mesh_size if self._replicated else 1
        return Mesh(replicate=copies, shard=self._info.shard_mesh_size)

    @property
    def _over(self) -> dict[str, Any]:
        """The mesh's process groups by axis."""
        names = {axis: f"{axis}_process_group" for axis in ("shard", "replicate")}
        return {axis: getattr(self._info, name) for axis, name in names.items() if hasattr(self._info, name)}

    @property
    def _fsdp(self) -> Fsdp:
        """How fully_shard was called. The root keeps its parameters by default, so another unit tells of resharding."""
        inner = self._groups[-1]
        part = inner.post_forward_mesh_info
        reshard = 0 if part is None else 1 if part == inner.mesh_info else int(part.shard_mesh_size)
        ahead = (len(unit._get_fsdp_state()._states_to_forward_prefetch) for unit in self._units)  # noqa: SLF001
        reduced = inner.mp_policy.reduce_dtype or self.dtype
        classes = {type(unit).__name__.removeprefix("FSDP") for unit in self._units[1:]}
        return Fsdp(
            reshard=reshard,
            units=",".join(sorted(classes)) or "auto",
            prefetch=max(ahead, default=0),
            reduce_dtype="bf16" if reduced == torch.bfloat16 else "fp32",
            separate_reduce_scatter_group=reduces_alone(self._info) is not None,
        )


def _only_ddp(module: torch.nn.Module) -> DistributedDataParallel | None:
    """The module, or the one inside of it that has all of its trained parameters."""
    if isinstance(module, DistributedDataParallel):
        return module
    wrappers = [part for part in module.modules() if isinstance(part, DistributedDataParallel)]
    if len(wrappers) != 1:
        return None
    inside = set(map(id, wrappers[0].parameters()))
    return wrappers[0] if all(id(p) in inside for p in module.parameters() if p.requires_grad) else None


def follow(model: Any) -> Followed:
    """How a probe sees a model. What torch.compile made of one is one as well. InputError where it is no model."""
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, torch.nn.Module):  # a `__getattr__` that has an answer to every name
        inner = model
    if isinstance(inner, torch.nn.Module) and (ddp := _only_ddp(inner)) is not None:
        return WrappedModel(ddp, model)
    if isinstance(inner, FSDPModule) and (sharded := ShardedModel(inner)).known:
        return sharded
    if (stages := stages_of(model)) is not None:
        return Scheduled(stages, model)
    if isinstance(inner, torch.nn.Module):
        return Followed(inner)
    raise InputError(
        f"Probe({type(model).__name__}): what the loop calls is expected: a module, a wrapper or an engine of one, "
        "or a schedule of torch.distributed.pipelining"
    )


class Outermost:
    """Finds the modules with parameters that a loop calls, and not those that these call."""

    def __init__(self, told: Callable[[Exception], None]) -> None:
        """`told`: whom an error in between is told; the training does not depend on it."""
        self._told, self._earlier, Guard.told = told, Guard.told, told
        self._thread, self._depth = threading.get_ident(), 0
        self._seen: weakref.WeakKeyDictionary[torch.nn.Module, None] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []
        self._hook(None)

    def _hook(self, within: torch.nn.Module | None) -> None:
        """Have every call of a module pass the hooks, or only the end of the call that runs of an outermost one.

        Where torch.compile makes something while there are hooks of all modules, it makes it again once they are gone.
        """
        self._unhook()
        after = guarded(self._after)
        if within is None:
            self._handles.append(register_module_forward_pre_hook(guarded(self._before)))
            self._handles.append(register_module_forward_hook(after, always_call=True))
        else:  # torch cannot remove it while an error passes; it then stays for the module's next call
            self._handles.append(within.register_forward_hook(after))

    def _unhook(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def close(self) -> None:
        """Remove the hooks."""
        self._unhook()
        if Guard.told == self._told:
            Guard.told = self._earlier

    @property
    def modules(self) -> list[torch.nn.Module]:
        """Those that were called with gradients, the largest first."""
        return sorted(self._seen, key=size_of, reverse=True)

    def trained_by(self, optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
        """The modules of an optimizer, the largest first; all of them where it steps copies of their parameters."""
        stepped = stepped_by(optimizer)
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
                    if any(map(is_compiled, module.modules())):
                        self._hook(module)

    def _after(self, _module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if not self._passes():
            self._depth = max(0, self._depth - 1)
            if len(self._handles) == 1:
                self._hook(None)


def stepped_by(optimizer: torch.optim.Optimizer) -> set[int]:
    """The ids of an optimizer's parameters."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def size_of(model: torch.nn.Module) -> tuple[int, int]:
    """Elements of its parameters, and its modules: of a sharded model and its only unit the model is the larger."""
    # ZeRO-3's are empty between uses.
    numbers = (getattr(p, "ds_numel", 0) or p.numel() for p in model.parameters())
    return sum(numbers), sum(1 for _ in model.modules())
