"""Train a module whose parameters are sharded over ranks: torch's fully_shard, over one axis (FSDP) or two (HSDP)."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from scaling.spec.parallel import Fsdp, Mesh
from scaling.spec.run import Spec
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.data.workload import MakeOptimizer, Workload
from scaling.worker.parallel.collectives import reduce_scatter
from scaling.worker.parallel.ddp import Wrapping
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.replicated import held_bytes
from scaling.worker.parallel.tap import HOST_BACKENDS, backend_of
from scaling.worker.parallel.unit_probe import UnitProbe
from scaling.worker.parallel.units import unit_names
from scaling.worker.parallel.watch import Watch

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class _HostReduceScatter:
    """torch's ReduceScatter for the host's back end: it moves what NCCL's does, and blocks the host meanwhile."""

    def __init__(self) -> None:
        self.watch: Watch | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: ARG002  # torch waits for it at once
    ) -> None:
        watching = self.watch is not None and self.watch.on_now
        around = self.watch.exchanging() if self.watch and watching else contextlib.nullcontext()
        reduce_scatter(output_tensor, input_tensor, group, mean=op == dist.ReduceOp.AVG, around=around)


def shard(
    module: nn.Module,
    settings: Fsdp,
    mesh: DeviceMesh,
    *,
    names: Sequence[str],
    precision: str,
    host: bool,
) -> tuple[list[Any], list[str]]:
    """Shard a module in place over a mesh. Returns its units with parameters, in their order, and their names.

    `names`: modules that are units; what is in none of them is the root's, which comes first. `host`: the back end is
    the host's. There all-gathers are made asynchronous, or nothing would overlap.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=TYPES["bf16"] if precision == "bf16" else None,
        reduce_dtype=TYPES[settings.reduce_dtype],
    )
    # A part of the ranks, true or false; over one rank nothing is left to reshard to.
    part = settings.reshard > 1 and mesh.size() > 1
    reshard: bool | int = settings.reshard if part else bool(settings.reshard)
    inner = [module.get_submodule(name) for name in names]
    for unit in inner:
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    # By default torch keeps what the root has gathered until backward, where it is needed first.
    kept: dict[str, Any] = {} if reshard is True else {"reshard_after_forward": reshard}
    fully_shard(module, mesh=mesh, mp_policy=policy, **kept)
    units: list[Any] = [u for u in (module, *inner) if param_groups(u)]
    labels = [
        name for u, name in zip((module, *inner), ("root", *names), strict=True) if any(u is v for v in units)
    ]
    _prefetch(module, inner, settings.prefetch)
    if host:
        for unit in (module, *inner):
            assert isinstance(unit, FSDPModule)
            unit._set_unshard_async_op(True)  # noqa: SLF001
            unit.set_custom_reduce_scatter(_HostReduceScatter())  # type: ignore[arg-type]
    if settings.separate_reduce_scatter_group and mesh.size() > 1:
        assert isinstance(module, FSDPModule)
        module.set_separate_reduce_scatter_group(True)
    return units, labels


def _prefetch(root: nn.Module, units: Sequence[nn.Module], count: int) -> None:
    """Gather so many units ahead, in the order of the model and back; 0: what torch does by itself."""
    if not count:
        return
    order: list[Any] = [u for u in (root, *units) if isinstance(u, FSDPModule)]
    for index, unit in enumerate(order):
        ahead = order[index + 1 : index + 1 + count]
        behind = order[max(1, index - count) : index][::-1]  # the root keeps its parameters until backward
        if ahead:
            unit.set_modules_to_forward_prefetch(ahead)
        if behind:
            unit.set_modules_to_backward_prefetch(behind)


def param_groups(unit: Any) -> list[Any]:
    """What a unit communicates: its parameter groups, most often one; none where all are in other units."""
    state = unit._get_fsdp_state()  # noqa: SLF001
    found = getattr(state, "_fsdp_param_groups", None)
    return list(found) if found is not None else [g for g in (state._fsdp_param_group,) if g]  # noqa: SLF001


class Shards:
    """fully_shard over a mesh, or over a mesh of one rank. Each use shards a copy of the workload's module."""

    def __init__(
        self,
        spec: Spec,
        workload: Workload,
        *,
        groups: Mapping[int, Group],
        world_size: int,
        device: Accelerator,
    ) -> None:
        self._spec, self._workload, self._device, self._n = spec, workload, device, world_size
        self._groups = groups
        self.wire_dtype = TYPES[spec.fsdp.reduce_dtype]
        self._names = unit_names(workload.module, spec.fsdp.units, workload.blocks)
        self._bare = Wrapping(workload.module, spec.ddp, compiles=spec.compile)

    def module(self, use: str) -> nn.Module:
        """The workload's own module."""
        return self._bare.module(use)

    def apply(self, use: str, *, alone: bool, detailed: bool = False, sync: bool = True) -> Sharded:  # noqa: ARG002
        """A sharded copy with an optimizer of its own.

        The one before it goes first: modules and their sharded states refer to each other, so only a collection finds
        them.
        """
        gc.collect()
        mesh, keys = self._mesh(alone=alone)
        backend = backend_of(self._groups[1].data, self._device.type)
        module = copy.deepcopy(self._workload.module)
        host = backend in HOST_BACKENDS
        units, labels = shard(
            module, self._spec.fsdp, mesh, names=self._names, precision=self._spec.precision, host=host
        )
        others = {} if alone else self._others()
        return Sharded(
            module, self._workload.optimizer, units, labels, keys, self._device, others=others, host=host
        )

    def _others(self) -> dict[tuple[int, ...], int]:
        """Keys of the communicators that torch makes by itself, by their ranks."""
        ranks = self._groups[self._n].ranks
        made = self._spec.parallel.mesh(self._n).made_by_torch(dist.get_rank(), self._spec.fsdp)
        return {tuple(ranks[r] for r in members): key for key, members in made.items()}

    def _mesh(self, *, alone: bool) -> tuple[DeviceMesh, dict[str, int]]:
        """The mesh, and the records' key of each communicator by its group's name."""
        kind, mesh = self._device.type, Mesh() if alone else self._spec.parallel.mesh(self._n)
        over = {axis: self._groups[key] for axis, key in mesh.keys().items()}
        keys = {group.data.group_name: group.key for group in over.values()}
        shards = over["shard"].data if "shard" in over else self._groups[1].data
        if "replicate" not in over:
            return DeviceMesh.from_group(shards, kind, mesh_dim_names=("shard",)), keys
        ranks = torch.arange(mesh.size).view(mesh.replicate, mesh.shard)
        names = ("replicate", "shard")
        return DeviceMesh.from_group(
            [over["replicate"].data, shards], kind, mesh=ranks, mesh_dim_names=names
        ), keys


class Sharded:
    """A sharded module as the loop trains it."""

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: MakeOptimizer,
        units: Sequence[FSDPModule],
        labels: list[str],
        keys: Mapping[str, int],
        device: Accelerator,
        *,
        others: Mapping[tuple[int, ...], int],
        host: bool,
    ) -> None:
        self.module, self._others = module, others
        self.optimizer = make_optimizer(module.parameters())
        self.units = labels
        self._keys, self._device = keys, device
        groups = [group for unit in units for group in param_groups(unit)]
        self.buckets = [sum(_whole_bytes(p) for p in group.fsdp_params) for group in groups]
        self._replicated = any(group._is_hsdp for group in groups)  # noqa: SLF001
        self._watch = Watch(groups, device.clock.stamp, host=host)
        for group in groups:
            if isinstance(group._reduce_scatter_comm, _HostReduceScatter):  # noqa: SLF001
                group._reduce_scatter_comm.watch = self._watch  # noqa: SLF001

    @contextlib.contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        """Before the last micro-step nothing is reduced over the copies, and with one copy not at all.

        HSDP reduces over the shards in every micro-step, so that no rank holds whole gradients.
        """
        root: Any = self.module
        root.set_is_last_backward(last)
        if self._replicated:
            root.set_requires_all_reduce(last)
        else:
            root.set_requires_gradient_sync(last)
        yield

    def settle(self) -> None:
        """Nothing changes after the first step."""

    def detail(self, *, detailed: bool) -> UnitProbe:
        """Where the rank waits, and in detailed blocks every collective."""
        return UnitProbe(
            self._watch, self._keys, self.buckets, self._device, detailed=detailed, others=self._others
        )

    def bytes(self) -> dict[str, int]:
        """The shards of this rank."""
        return held_bytes(self.module, self.optimizer)


def _whole_bytes(parameter: Any) -> int:
    """Of a parameter in all ranks together."""
    whole: torch.Tensor = parameter.sharded_param
    return whole.numel() * whole.element_size()
