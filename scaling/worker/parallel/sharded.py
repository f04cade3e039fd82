"""Train a module whose parameters are sharded over ranks, and whose layers may be divided over them as well.

torch's fully_shard goes over one axis (FSDP) or two (HSDP); tensor parallel divides layers over the innermost one.
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
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor.parallel import loss_parallel

from scaling.settings.parallel import AXES, Mesh
from scaling.settings.run import Spec
from scaling.worker.accelerator.accelerator import Accelerator, meshes
from scaling.worker.data.workload import MakeOptimizer, Workload
from scaling.worker.models.options import compile_units, own_backend
from scaling.worker.parallel.computed import share_bytes, unsharded_bytes
from scaling.worker.parallel.ddp import Bare
from scaling.worker.parallel.fsdp_waits import UnitProbe, Watch
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.replicated import held_bytes
from scaling.worker.parallel.shard import HALF, TYPES, reduces_of, shard, unit_names
from scaling.worker.parallel.strategy import Detail
from scaling.worker.parallel.streams import find, rewind, withheld
from scaling.worker.parallel.tap import HOST_BACKENDS, backend_of
from scaling.worker.parallel.tensor import Divided, divide
from scaling.worker.parallel.torch_private import param_groups, shard_fused_sgd, whole_bytes
from scaling.worker.parallel.waits import Waits


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
        labels: list[str] = []
        if degrees.data_parallel > 1 or self._spec.parallel.name != "tp":
            units, labels = shard(
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
            labels,
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
        shares["unsharded"] = unsharded_bytes(sizes, self._spec.fsdp, root=True) if mesh.shard > 1 else 0
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
        labels: list[str],
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
        self.units = labels
        self._keys, self._device = keys, device
        groups = [group for unit in units for group in param_groups(unit)]
        self.buckets = [sum(whole_bytes(p) for p in group.fsdp_params) for group in groups]
        self._replicated = any(group._is_hsdp for group in groups)  # noqa: SLF001
        self._watch = Watch(groups, device.clock.stamp, host=host)

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
            self.buckets,
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
