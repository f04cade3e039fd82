"""Apply a run's options to a workload: memory format, checkpointing, optimizer, compiler."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from scaling.errors import InputError
from scaling.spec.run import Spec
from scaling.spec.topology import CPU
from scaling.worker.data.workload import Workload
from scaling.worker.models.checkpoint import checkpoint_activations


def shaped(workload: Workload, spec: Spec) -> Workload:
    """The workload with the options applied. InputError where one cannot apply, or the model cannot be measured so."""
    if spec.task != "inference" and any(isinstance(m, nn.SyncBatchNorm) for m in workload.module.modules()):
        _check_norms(spec)
    if spec.channels_last:
        _to_channels_last(workload.module)
    if spec.checkpointing:
        checkpoint_activations(workload)
    if spec.fused_optimizer:
        fused = functools.partial(_fused, workload.optimizer)
        workload = dataclasses.replace(workload, optimizer=fused)
    return workload


def _check_norms(spec: Spec) -> None:
    """InputError where SyncBatchNorm does not run, or where its waits would not be told apart."""
    if spec.topology.device == CPU:
        raise InputError(
            "model: SyncBatchNorm runs on accelerators alone, torch refuses it on a CPU; use BatchNorm"
        )
    unseen = {
        "compile=true": spec.compile,
        "a run by cases (batch=[...], batch=max, vary)": spec.by_case,
        "parallel other than ddp": any(one.parallel.sharded for one in spec.strategies),
    }
    for what, asked in unseen.items():
        if asked and max(spec.world_sizes) > 1:
            raise InputError(
                f"model: SyncBatchNorm waits for the other ranks inside the model, which is not measured with {what}"
            )


def loading(spec: Spec, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A device's `load` that also converts batches to the module's memory format, as a training loop must."""
    if not spec.channels_last:
        return load
    return lambda batch: tree_map_only(torch.Tensor, _as_channels_last, load(batch))


def compiled(module: nn.Module) -> nn.Module:
    """torch.compile for one wrapper alone.

    Dynamo caches graphs by code and back end. With a shared back end, DDP would reuse the graph of the bare module:
    one graph, not cut at the buckets' ends, with all gradients at its end and no reduction hidden behind backward. So
    each wrapper gets its own back end, and the cache has room for all their graphs. Shapes are static, since the
    batches of a training have one size.
    """
    return torch.compile(module, backend=own_backend(), dynamic=False)  # type: ignore[return-value]


def compile_units(units: Iterable[nn.Module], backend: Any) -> None:
    """torch.compile for the forward of each of a sharded module's units.

    Their hooks, which gather and free parameters, stay outside of the graphs. Units of one class share a graph, and so
    do later copies of the module with the same `backend`.
    """
    for unit in units:
        unit.forward = torch.compile(unit.forward, backend=backend, dynamic=False)


def own_backend() -> Any:
    """A back end with graphs of its own."""
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415  # takes a second, which only compiling needs

    torch._dynamo.config.recompile_limit = GRAPHS_MAX  # noqa: SLF001

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        return compile_fx(graph, inputs)

    return backend


GRAPHS_MAX = 256
"""Limit on graphs of one function: a few for each wrapper of each world size."""


def _to_channels_last(module: nn.Module) -> None:
    if not any(p.dim() == 4 for p in module.parameters()):
        raise InputError(
            "channels_last=true: the model has no 4-dimensional parameter, so nothing would change"
        )
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _as_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _fused(
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The same optimizer with the same settings and `fused=True`."""
    plain = optimizer(parameters)
    if "fused" not in plain.defaults:
        raise InputError(
            f"fused_optimizer=true: {type(plain).__name__} has no fused form; torch's SGD, Adam, AdamW and Adagrad have"
        )
    known = inspect.signature(type(plain)).parameters
    settings = {k: v for k, v in plain.defaults.items() if k in known}
    groups = [{k: v for k, v in g.items() if k == "params" or k in known} for g in plain.param_groups]
    for group in groups:
        group |= {"fused": True, "foreach": False}
    return type(plain)(groups, **settings | {"fused": True, "foreach": False})
