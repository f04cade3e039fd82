"""Which models a probe can follow: the only place that knows all of them.

A DistributedDataParallel in a user's loop: its buckets, and how it accumulates.

A module that fully_shard was called on, in a user's loop: its units, its mesh, and how it accumulates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import InputError
from scaling.settings.parallel import Fsdp, Mesh, Parallel
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.buckets import BucketDetail
from scaling.worker.parallel.ddp import Norms, bucket_bytes, sends_buffers, settings_of
from scaling.worker.parallel.fsdp_waits import UnitProbe, Watch
from scaling.worker.parallel.guard import compiled as is_compiled
from scaling.worker.parallel.strategy import Detail
from scaling.worker.parallel.tap import HOST_BACKENDS, Tap
from scaling.worker.parallel.torch_private import param_groups, reduces_alone, whole_bytes
from scaling.worker.probe.any_loop import Followed, Scheduled, stages_of


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
        return UnitProbe(watch, names, self.sizes(), device, others=others)

    def sizes(self) -> list[int]:
        """Bytes of each unit, whole."""
        return [sum(whole_bytes(p) for p in group.fsdp_params) for group in self._groups]

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
