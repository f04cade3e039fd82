"""Train a module whose parameters are sharded over ranks, and whose layers may be divided over them as well.

torch's fully_shard goes over one axis (FSDP) or two (HSDP), with the harness's settings: which modules are units, what
is gathered ahead, and how the host's back end sends. Tensor parallel divides layers over the innermost axis.
"""

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
from torch.distributed.tensor.parallel import loss_parallel

from scaling.errors import InputError
from scaling.settings.parallel import AXES, Fsdp, Mesh
from scaling.settings.run import Spec
from scaling.worker.accelerator.accelerator import Accelerator, meshes
from scaling.worker.data.workload import MakeOptimizer, Workload
from scaling.worker.models.options import compile_units, own_backend, repeated
from scaling.worker.parallel.collectives import all_gather, reduce_scatter
from scaling.worker.parallel.ddp import Bare
from scaling.worker.parallel.fsdp_waits import UnitProbe, Watch
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.replicated import held_bytes, share_bytes
from scaling.worker.parallel.strategy import Detail
from scaling.worker.parallel.streams import find, rewind, withheld
from scaling.worker.parallel.tap import HOST_BACKENDS, backend_of
from scaling.worker.parallel.tensor import Divided, divide
from scaling.worker.parallel.torch_private import param_groups, reduces_alone, shard_fused_sgd
from scaling.worker.parallel.waits import Waits

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HALF = ("bf16", "fp16")
"""Precisions in which parameters are gathered and computed with."""


class Shards:
    """fully_shard over a mesh, or over a mesh of one rank. Each use shards a copy of the workload's module."""

    steps_alone = False

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
        self._host = backend_of(groups[1].data, device.type) in HOST_BACKENDS
        self.wire_dtype = TYPES[spec.fsdp.reduce_dtype]
        self._names = unit_names(workload.module, spec.fsdp.units, workload.blocks)
        self._reduces: Any = None
        """The communicator of reduce-scatters alone, once one was made."""
        self.module = Bare(workload.module, alone=groups[1].data, compiles=spec.compile).module
        self._backend = own_backend() if spec.compile else None

    def apply(self, use: str, *, alone: bool, sync: bool = True) -> Sharded:  # noqa: ARG002
        """A sharded copy with an optimizer of its own; the one before it goes first."""
        self.free()
        rewind(self._device)
        degrees = Mesh() if alone else self._spec.parallel.mesh(self._n)
        mesh, keys = self._mesh(degrees)
        module = copy.deepcopy(self._workload.module)
        divided = Divided()
        if degrees.tensor > 1:
            divided = divide(self._workload, module, mesh["tensor"], sequence=self._spec.parallel.sequence)
            torch.manual_seed(self._spec.seed)  # ranks of a tensor group drop the same activations
        units: list[Any] = []
        if degrees.data_parallel > 1 or self._spec.parallel.name != "tp":
            units = shard(
                module,
                self._spec.fsdp,
                _over_samples(mesh),
                names=self._names,
                precision=self._spec.precision,
                host=self._host,
                reduces=self._reduces,
            )
            self._reduces = self._reduces or (None if alone else reduces_of(units))
        if self._backend is not None:
            compile_units([module.get_submodule(name) for name in self._names or [""]], self._backend)
        return Sharded(
            module,
            self._workload.optimizer,
            units,
            keys,
            self._device,
            others={} if alone else self._others(),
            host=self._host,
            divided=divided,
            sends=mesh.get_all_groups(),
        )

    def free(self) -> None:
        """Modules and their sharded states refer to each other, so only a collection finds them."""
        gc.collect()

    def computed(self, optimizer: torch.optim.Optimizer) -> dict[str, int]:
        """The rank's shard of everything, and the units that are gathered at once; nothing where layers are divided."""
        mesh, whole = self._spec.parallel.mesh(self._n), self._workload.module
        if mesh.tensor > 1:  # torch's styles decide which of its tensors are divided
            return {}
        place = self._groups[self._n].ranks.index(dist.get_rank()) % mesh.shard
        shares = share_bytes(whole, optimizer, mesh.shard, place)
        inner = [list(whole.get_submodule(name).parameters()) for name in self._names]
        theirs = {p for unit in inner for p in unit}
        units = [[p for p in whole.parameters() if p not in theirs], *inner]
        wire = 2 if self._spec.precision in HALF else None
        sizes = [sum(p.numel() * (wire or p.element_size()) for p in unit) for unit in units]
        shares["unsharded"] = unsharded_bytes(sizes, self._spec.fsdp) if mesh.shard > 1 else 0
        return shares

    def _others(self) -> dict[tuple[int, ...], int]:
        """Keys of the communicators that torch makes by itself, by their ranks."""
        ranks = self._groups[self._n].ranks
        by_key = self._spec.parallel.mesh(self._n).made_by_torch(dist.get_rank(), self._spec.fsdp)
        return {tuple(ranks[r] for r in members): key for key, members in by_key.items()}

    def _mesh(self, degrees: Mesh) -> tuple[DeviceMesh, dict[str, int]]:
        """The mesh, and the records' key of each communicator by its group's name."""
        over = {axis: self._groups[key] for axis, key in degrees.keys().items()}
        keys = {group.data.group_name: group.key for group in over.values()}
        sizes = {axis: getattr(degrees, axis) for axis in AXES}
        names = tuple(axis for axis, size in sizes.items() if size > 1 or axis == "shard")
        groups = [(over[axis] if axis in over else self._groups[1]).data for axis in names]
        if len(names) == 1:
            return DeviceMesh.from_group(groups[0], self._device.type, mesh_dim_names=names), keys
        ranks = torch.arange(degrees.size).view([sizes[axis] for axis in names])
        return DeviceMesh.from_group(groups, self._device.type, mesh=ranks, mesh_dim_names=names), keys


def _over_samples(mesh: DeviceMesh) -> DeviceMesh:
    """The axes along which ranks train on samples of their own."""
    names = tuple(name for name in mesh.mesh_dim_names or () if name != "tensor")
    return mesh if names == mesh.mesh_dim_names else mesh[names]


class Sharded:
    """A sharded module as the loop trains it."""

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: MakeOptimizer,
        units: Sequence[FSDPModule],
        keys: Mapping[str, int],
        device: Accelerator,
        *,
        others: Mapping[tuple[int, ...], int],
        host: bool,
        divided: Divided,
        sends: Sequence[Any] = (),
    ) -> None:
        """`sends`: the mesh's communicators."""
        self._sends = sends
        self.module, self._others = module, others
        shard_fused_sgd()
        self.optimizer = make_optimizer(by_mesh(module) if divided.layers else module.parameters())
        self._divided = divided
        self._keys, self._device = keys, device
        groups = [group for unit in units for group in param_groups(unit)]
        self._replicated = any(group._is_hsdp for group in groups)  # noqa: SLF001
        self._watch = Watch(groups, device.clock.stamp, host=host)
        self.buckets = self._watch.sizes

    @contextlib.contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        """Before the last micro-step nothing is reduced over the copies, and with one copy not at all.

        HSDP reduces over the shards in every micro-step, so that no rank holds whole gradients.
        """
        root: Any = self.module
        if isinstance(root, FSDPModule):
            root.set_is_last_backward(last)
            if self._replicated:
                root.set_requires_all_reduce(last)
            else:
                root.set_requires_gradient_sync(last)
        with loss_parallel() if self._divided.loss else contextlib.nullcontext():
            yield

    def settle(self) -> None:
        """Nothing changes after the first step."""

    def withheld(self) -> str:
        """The streams of its communicators are stamped, and those on which fully_shard starts its own."""
        find(self._sends, self._device)
        return withheld(self._sends, self._watch.streams(), self._device)

    def detail(self, *, detailed: bool) -> Detail:
        """Where the rank waits, and in detailed blocks every collective."""
        waits = Waits(self._device) if self._keys else None
        units = UnitProbe(
            self._watch,
            self._keys,
            self._device,
            others=self._others,
            divided_layers=self._divided.layers,
            waits=waits,
        )
        return units if detailed else Detail(waits, stamps=units.stamps, waits_behind=False)

    def bytes(self) -> dict[str, int]:
        """The shards of this rank."""
        return held_bytes(self.module, self.optimizer)


def by_mesh(module: nn.Module) -> Any:
    """Parameters, in groups by the mesh that they are divided over.

    Optimizers refuse a mixture where they take many tensors in one call, as they do on accelerators (`foreach`).
    """
    groups = meshes(module.parameters())
    return [{"params": group} for group in groups] if len(groups) > 1 else module.parameters()


def unsharded_bytes(units: Sequence[int], fsdp: Fsdp) -> int:
    """Most bytes of gathered parameters at once; `units`: of each whole unit, in their order, the root's first.

    The root's are kept from forward to the end of backward. Of the others, those gathered ahead stand beside the one
    that computes; without explicit prefetching torch gathers one ahead in backward. With reshard_after_forward=false
    all are there when backward begins.
    """
    root, *inner = units
    window = 1 + max(1, fsdp.prefetch) if fsdp.reshard else len(inner)
    return root + max((sum(inner[k : k + window]) for k in range(len(inner))), default=0)


class _Allocates:
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer, as torch asks for it."""
        return torch.empty(*size, dtype=dtype, device=device)


class HostAllGather(_Allocates):
    """torch's AllGather for the host's back end: both directions of every link carry at once."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather every rank's part."""
        return all_gather(output_tensor, input_tensor, group, async_op=async_op)


class HostReduceScatter(_Allocates):
    """torch's ReduceScatter for the host's back end: it moves what NCCL's does, and blocks the host meanwhile."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: ARG002  # torch waits for it at once
    ) -> None:
        """Reduce into this rank's part."""
        reduce_scatter(output_tensor, input_tensor, group, mean=op == dist.ReduceOp.AVG)


def shard(
    module: nn.Module,
    settings: Fsdp,
    mesh: DeviceMesh,
    *,
    names: Sequence[str],
    precision: str,
    host: bool,
    reduces: Any = None,
) -> list[Any]:
    """Shard a module in place over a mesh. Returns its units with parameters, in their order.

    `names`: modules that are units; what is in none of them is the root's, which comes first. `host`: the back end is
    the host's. There all-gathers are made asynchronous, or nothing would overlap. `reduces`: the communicator that an
    earlier module over the same ranks had for reduce-scatters alone (`reduces_of`). Without it torch makes another one
    for each module, and keeps all of them to the end.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=TYPES[precision] if precision in HALF else None, reduce_dtype=TYPES[settings.reduce_dtype]
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
    every: list[Any] = [module, *inner]
    units = [unit for unit in every if param_groups(unit)]
    _prefetch(every, settings.prefetch)
    for unit in every if host else ():
        unit._set_unshard_async_op(True)  # noqa: SLF001
        unit.set_custom_reduce_scatter(HostReduceScatter())
        unit.set_custom_all_gather(HostAllGather())
    if settings.separate_reduce_scatter_group and mesh.size() > 1:
        require_own_reduces()
        for group in (g for unit in units for g in param_groups(unit)) if reduces is not None else ():
            group.mesh_info.reduce_scatter_process_group = reduces
        every[0].set_separate_reduce_scatter_group(True)
    return units


def require_own_reduces() -> None:
    """InputError where torch cannot give reduce-scatters a communicator of their own: 2.11 cannot, 2.13 can."""
    if not hasattr(FSDPModule, "set_separate_reduce_scatter_group"):
        raise InputError(
            f"fsdp.separate_reduce_scatter_group=true: torch {torch.__version__} cannot; try false, or a newer torch"
        )


def reduces_of(units: Sequence[Any]) -> Any:
    """The communicator that units have for reduce-scatters alone; None where they share that of their all-gathers."""
    return next((reduces_alone(group.mesh_info) for unit in units for group in param_groups(unit)), None)


def _prefetch(order: Sequence[Any], count: int) -> None:
    """Gather so many units ahead, in the order of the model and back, the root first; 0: what torch does by itself."""
    for index, unit in enumerate(order if count else ()):
        ahead = order[index + 1 : index + 1 + count]
        behind = order[max(1, index - count) : index][::-1]  # the root keeps its parameters until backward
        if ahead:
            unit.set_modules_to_forward_prefetch(ahead)
        if behind:
            unit.set_modules_to_backward_prefetch(behind)


def unit_names(module: nn.Module, asked: str, blocks: Sequence[nn.Module] = ()) -> list[str]:
    """Names of the modules that are units, in the order of the model; what is in none of them belongs to the root.

    `asked`: class names with commas, or `auto`: the blocks that the workload names, those that the model repeats, or
    the children of a Sequential. InputError where a class is not in the model.
    """
    names = {id(inner): name for name, inner in module.named_modules()}
    if asked != "auto":
        return _of_classes(module, [word.strip() for word in asked.split(",") if word.strip()])
    chosen = list(blocks) or repeated(module)
    if not chosen and isinstance(module, nn.Sequential):
        chosen = list(module)
    order = list(names)
    kept = [m for m in chosen if any(p.requires_grad for p in m.parameters())]
    return [names[id(m)] for m in sorted(kept, key=lambda m: order.index(id(m)))]


def _of_classes(module: nn.Module, wanted: Sequence[str]) -> list[str]:
    kinds = {type(inner).__name__ for inner in module.modules()}
    for word in wanted:
        if word not in kinds:
            raise InputError(
                f"fsdp.units={','.join(wanted)}: the model has no {word}; it has {', '.join(sorted(kinds))}"
            )
    return [
        name
        for name, inner in module.named_modules()
        if name and type(inner).__name__ in wanted and any(True for _ in inner.parameters())
    ]
