"""Puts a module onto the simulated device without ever making it on the host, divided as a mesh says."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from scaling.errors import InputError
from scaling.spec.run import Spec
from scaling.spec.simulation import REPLICATE, SHARD, TENSOR, Mesh
from scaling.worker.accelerator.precision import DTYPES
from scaling.worker.parallel.ddp import wrap

COLUMNS = r".*\.(q_proj|k_proj|v_proj|gate_proj|up_proj)"
ROWS = r".*\.(o_proj|down_proj)"
EXPERTS = re.compile(r"moe|expert", re.IGNORECASE)


def refuse_experts(module: nn.Module) -> None:
    """InputError for a model with experts: what each rank computes depends on its samples, so ranks are not alike."""
    found = next((type(m).__name__ for m in module.modules() if EXPERTS.search(type(m).__name__)), None)
    if found is not None:
        raise InputError(
            f"model: {found} routes samples to experts (MoE), so ranks do not do alike; one rank cannot stand "
            "for all of them"
        )


def on_device(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with memory on the device for what was made without any; parameters that were one stay one."""
    made: dict[int, torch.Tensor] = {}

    def real(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            new = torch.empty_like(tensor, device=device)
            made[id(tensor)] = (
                nn.Parameter(new, requires_grad=tensor.requires_grad)
                if isinstance(tensor, nn.Parameter)
                else new
            )
        return made[id(tensor)]

    for part in module.modules():
        for name, parameter in part._parameters.items():  # noqa: SLF001
            if parameter is not None:
                part._parameters[name] = real(parameter)  # type: ignore[assignment]  # noqa: SLF001
        for name, buffer in part._buffers.items():  # noqa: SLF001
            if buffer is not None:
                part._buffers[name] = real(buffer)  # noqa: SLF001
    return module


def divided(module: nn.Module, spec: Spec, mesh: Mesh, device: torch.device) -> nn.Module:
    """The module as the mesh's strategy trains it, on the device. InputError where it cannot be divided so."""
    if mesh.strategy == "single":
        return on_device(module, device)
    if mesh.strategy == "ddp":
        group = torch.distributed.group.WORLD
        assert group is not None
        return wrap(on_device(module, device), spec.ddp, group)
    sizes, names = _dimensions(mesh)
    axes = init_device_mesh("sim", sizes, mesh_dim_names=names)
    if mesh.tensor > 1:
        _split_layers(module, axes[TENSOR] if len(axes.mesh_dim_names or ()) > 1 else axes)
    if mesh.data_parallel > 1 or "fsdp" in mesh.strategy or "hsdp" in mesh.strategy:
        _shard(module, spec, mesh, axes)
    return on_device(module, device)


def _dimensions(mesh: Mesh) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Sizes and names of the mesh's dimensions: those that the strategy has, though they may have one rank."""
    named = {
        "fsdp": (SHARD,),
        "hsdp": (REPLICATE, SHARD),
        "tp": (TENSOR,),
        "fsdp_tp": (SHARD, TENSOR),
        "hsdp_tp": (REPLICATE, SHARD, TENSOR),
    }[mesh.strategy]
    sizes = {REPLICATE: mesh.replicate, SHARD: mesh.shard, TENSOR: mesh.tensor}
    return tuple(sizes[name] for name in named), named


def _shard(module: nn.Module, spec: Spec, mesh: Mesh, axes: DeviceMesh) -> None:
    names = axes.mesh_dim_names or ()
    data = tuple(name for name in names if name != TENSOR)
    of = axes if len(data) == len(names) else axes[data if len(data) > 1 else data[0]]
    low = DTYPES.get(spec.precision)
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32 if low else None)
    for unit in (*units(module), module):
        fully_shard(unit, mesh=of, mp_policy=policy, reshard_after_forward=mesh.reshard_after_forward)


def units(module: nn.Module) -> list[nn.Module]:
    """What FSDP gathers at once: the layers of the model, which repeat in its outermost lists; [] where it has none."""
    found: list[nn.Module] = []
    _collect(module, found)
    return found


def _collect(module: nn.Module, found: list[nn.Module]) -> None:
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            kinds = Counter(type(part) for part in child)
            repeated = [p for p in child if kinds[type(p)] > 1 and next(p.parameters(), None) is not None]
            found += repeated
            for part in child:
                if part not in repeated:
                    _collect(part, found)
        else:
            _collect(child, found)
    if isinstance(module, nn.Sequential) and not found:
        found += [p for p in module if next(p.parameters(), None) is not None]


def _split_layers(module: nn.Module, axis: DeviceMesh) -> None:
    """Each layer over the ranks of an axis, as Megatron does: first matrices by columns, second ones by rows."""
    plan: dict[str, ParallelStyle] = {}
    for name, part in module.named_modules():
        if not isinstance(part, nn.Linear):
            continue
        if re.fullmatch(COLUMNS, name):
            plan[name] = ColwiseParallel()
        elif re.fullmatch(ROWS, name):
            plan[name] = RowwiseParallel()
    if not plan:
        raise InputError(
            "parallel=tp: no layer of this model is known to be divided; layers are known by the names of Llama's "
            "(q_proj, k_proj, v_proj, gate_proj, up_proj by columns, o_proj and down_proj by rows)"
        )
    heads = [getattr(getattr(m, "config", None), "num_key_value_heads", None) for m in module.modules()]
    least = min((h for h in heads if h), default=None)
    if least is not None and least % axis.size():
        raise InputError(
            f"parallel.tensor={axis.size()}: does not divide the model's {least} key and value heads"
        )
    parallelize_module(module, axis, plan)


def parameter_groups(module: nn.Module) -> list[dict[str, list[nn.Parameter]]]:
    """Parameters by the mesh that they are divided over: an optimizer's fused loops refuse a mixture."""
    groups: dict[int, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        groups.setdefault(id(getattr(parameter, "device_mesh", None)), []).append(parameter)
    return [{"params": group} for group in groups.values()]


def tensors_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """("parameters" | "gradients" | "optimizer", a rank's own tensor), each once."""
    for parameter in module.parameters():
        yield "parameters", _local(parameter)
        if parameter.grad is not None:
            yield "gradients", _local(parameter.grad)
    states = itertools.chain.from_iterable(state.values() for state in optimizer.state.values())
    for value in states:
        if isinstance(value, torch.Tensor):
            yield "optimizer", _local(value)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
