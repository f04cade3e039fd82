"""What a run's options make of a workload: memory format, checkpoints, optimizer, compiler."""

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
from scaling.spec import Spec
from scaling.worker.checkpoint import checkpoint_activations
from scaling.worker.workload import Workload


def shaped(workload: Workload, spec: Spec) -> Workload:
    """The workload as the options ask for it; InputError where one finds nothing to act on, or no rank can be alone."""
    together = spec.task != "inference" and max(spec.world_sizes) > 1
    if together and any(isinstance(module, nn.SyncBatchNorm) for module in workload.module.modules()):
        raise InputError(
            "model: SyncBatchNorm waits for the other ranks in its forward, and a baseline is one rank alone; use "
            "BatchNorm"
        )
    if spec.channels_last:
        _to_channels_last(workload.module)
    if spec.checkpointing:
        checkpoint_activations(workload)
    if spec.fused_optimizer:
        fused = functools.partial(_fused, workload.optimizer)
        workload = dataclasses.replace(workload, optimizer=fused)
    return workload


def loading(spec: Spec, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A device's `load` that leaves batches in the module's memory format, as a training loop has to."""
    if not spec.channels_last:
        return load
    return lambda batch: tree_map_only(torch.Tensor, _as_channels_last, load(batch))


def compiled(module: nn.Module) -> nn.Module:
    """torch.compile for one wrapper alone.

    Dynamo keeps graphs by code and backend. Were the backend one and the same, a module that ran bare would
    be taken as it is into DDP: in one graph, not cut where the buckets end, with all gradients at its very end
    and nothing of their reduction behind backward. Hence a backend of its own, and room for every wrapper's
    graphs. Shapes are taken as they are: batches of one size are what a training has.
    """
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415  # a second, for who compiles

    torch._dynamo.config.recompile_limit = GRAPHS_MAX  # noqa: SLF001

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        return compile_fx(graph, inputs)

    return torch.compile(module, backend=backend, dynamic=False)  # type: ignore[return-value]


GRAPHS_MAX = 256
"""Of one function: some for each wrapper of each world size."""


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
    """The same optimizer with the same settings, made again with `fused=True`."""
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
