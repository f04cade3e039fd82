"""Puts a module onto the simulated device without ever making it on the host, spread over ranks as a run does it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from scaling.errors import InputError
from scaling.settings.parallel import AXES, Mesh
from scaling.settings.run import Spec
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.data.workload import Workload
from scaling.worker.parallel.ddp import wrap
from scaling.worker.parallel.sharded import Sharded, shard, unit_names
from scaling.worker.parallel.tensor import Divided, divide
from scaling_simulator import chunks

EXPERTS = re.compile(r"moe|expert", re.IGNORECASE)


def refuse_experts(module: nn.Module) -> None:
    """InputError for a model with experts: what each rank computes depends on its samples, so ranks are not alike."""
    expert = next((type(m).__name__ for m in module.modules() if EXPERTS.search(type(m).__name__)), None)
    if expert is not None:
        raise InputError(
            f"model: {expert} routes samples to experts (MoE), so ranks do not do alike; one rank cannot stand "
            "for all of them"
        )


def on_device(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with memory on the device for what was made without any; parameters that were one stay one."""
    tensors: dict[int, torch.Tensor] = {}

    def real(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in tensors:
            new = torch.empty_like(tensor, device=device)
            tensors[id(tensor)] = (
                nn.Parameter(new, requires_grad=tensor.requires_grad)
                if isinstance(tensor, nn.Parameter)
                else new
            )
        return tensors[id(tensor)]

    for part in module.modules():
        for name, parameter in part._parameters.items():  # noqa: SLF001
            if parameter is not None:
                part._parameters[name] = real(parameter)  # type: ignore[assignment]  # noqa: SLF001
        for name, buffer in part._buffers.items():  # noqa: SLF001
            if buffer is not None:
                part._buffers[name] = real(buffer)  # noqa: SLF001
    return module


class Trained(NamedTuple):
    """A module as the loop trains it."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    accumulate: Callable[[bool], contextlib.AbstractContextManager[Any]] | None
    """Around a micro-step, given whether it is the last; None: what DDP or a bare module needs."""


def spread(workload: Workload, spec: Spec, mesh: Mesh, device: Accelerator) -> Trained:
    """The workload's module as the spec's strategy trains it over the mesh, on the device.

    DDP wraps, layers are divided and `fully_shard` shards as in a measured run, with its settings. InputError where
    it cannot be.
    """
    module, on = workload.module, device.torch_device
    if mesh.size == 1 or not spec.parallel.sharded:
        module = on_device(module, on)
        if mesh.size > 1:
            group = torch.distributed.group.WORLD
            assert group is not None
            module = wrap(module, spec.ddp, group)
        return Trained(module, workload.optimizer(module.parameters()), None)
    kept = tuple(axis for axis in AXES if getattr(mesh, axis) > 1 or axis == "shard")
    axes = init_device_mesh("sim", tuple(getattr(mesh, axis) for axis in kept), mesh_dim_names=kept)
    names = unit_names(module, spec.fsdp.units, workload.blocks)
    layers = Divided()
    if mesh.tensor > 1:
        layers = divide(workload, module, axes["tensor"], sequence=spec.parallel.sequence)
    units: list[Any] = []
    if mesh.data_parallel > 1 or spec.parallel.name != "tp":
        data = tuple(axis for axis in kept if axis != "tensor")
        over = axes if data == kept else axes[data]
        with chunks.as_needed():
            units = shard(module, spec.fsdp, over, names=names, precision=spec.precision, host=False)
    module = on_device(module, on)
    sharded = Sharded(module, workload.optimizer, units, {}, device, others={}, host=False, divided=layers)
    return Trained(module, sharded.optimizer, sharded.accumulate)
