"""Apply a run's options to a workload: memory format, checkpointing, optimizer, compiler.

Activation checkpointing: save memory by running the forward again in backward.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from scaling.errors import InputError
from scaling.settings.run import Spec
from scaling.settings.topology import CPU
from scaling.worker.data.workload import Workload
from scaling.worker.parallel.torch_private import limit_recompiles, tree_map_only


def checkpoint_activations(workload: Workload) -> Callable[[], None]:
    """Make parts of the module keep only their inputs and run again in backward.

    The parts are the `blocks` that the workload names, or else those that the module repeats, or else stretches of a
    Sequential's children. InputError where there is none of these. Returns a function that undoes it.
    """
    forwards = _recomputed(workload.module, workload.blocks or repeated(workload.module))
    before = [(module, module.__dict__.get("forward")) for module, _ in forwards]
    for module, forward in forwards:
        module.forward = forward

    def undo() -> None:
        for module, original in before:
            if original is None:
                module.__dict__.pop("forward", None)
            else:
                module.forward = original

    return undo


def repeated(module: nn.Module) -> list[nn.Module]:
    """Blocks that appear with others of their class in a list; outermost first, none within another.

    A model repeats its layers (transformers) or the blocks of its stages (ResNet).
    """
    blocks: list[nn.Module] = []
    left = [module]
    while left:
        here = left.pop()
        if isinstance(here, nn.ModuleList | nn.Sequential):
            kinds = [type(child) for child in here]
            chosen = [c for c in here if kinds.count(type(c)) > 1 and any(True for _ in c.children())]
            blocks += chosen
            left += [c for c in here if not any(c is block for block in chosen)]
        else:
            left += list(here.children())
    return blocks


def _recomputed(module: nn.Module, blocks: Sequence[nn.Module]) -> list[tuple[nn.Module, Any]]:
    """Modules, each with its new forward.

    A Sequential of N children is cut into about sqrt(N) stretches, which keeps the least memory if each is computed
    once more: T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174, section 4.
    """
    if blocks:
        return [(block, functools.partial(_again, block.forward)) for block in blocks]
    if isinstance(module, nn.Sequential) and len(module) > 1:
        stretches = max(2, math.isqrt(len(module)))
        # A partial and not a closure: a copy of the module then runs its own children.
        return [(module, functools.partial(_stretched, nn.Sequential(*module), stretches))]
    raise InputError(
        "checkpointing=true: the model has nothing to checkpoint: it repeats no block, is no Sequential, and its "
        "Workload names no blocks"
    )


def _stretched(children: nn.Sequential, stretches: int, inputs: Any) -> Any:
    """checkpoint_sequential does not compute the last stretch again, since backward begins with it."""
    return checkpoint_sequential(children, stretches, inputs, use_reentrant=False)  # type: ignore[no-untyped-call]


def _again(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def shaped(workload: Workload, spec: Spec) -> Workload:
    """The workload with the options applied. InputError where one cannot apply, or the model cannot be measured so."""
    if spec.task != "inference" and any(isinstance(m, nn.SyncBatchNorm) for m in workload.module.modules()):
        _check_norms(spec)
    if spec.channels_last:
        if not any(p.dim() == 4 for p in workload.module.parameters()):
            raise InputError(
                "channels_last=true: the model has no 4-dimensional parameter, so nothing would change"
            )
        workload.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if spec.checkpointing:
        checkpoint_activations(workload)
    if spec.fused_optimizer:
        workload = dataclasses.replace(workload, optimizer=functools.partial(_fused, workload.optimizer))
    return workload


def _check_norms(spec: Spec) -> None:
    """InputError where SyncBatchNorm does not run, or where its waits would not be told apart."""
    if spec.topology.device == CPU:
        raise InputError(
            "model: SyncBatchNorm runs on accelerators alone, torch refuses it on a CPU; use BatchNorm"
        )
    unseen = {
        "compile=true": spec.compile,
        "a run by cases (batch=[...], batch=max, vary)": spec.kind.by_cases,
        "parallel other than ddp": any(strategy.parallel.sharded for strategy in spec.strategies),
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

    limit_recompiles(GRAPHS_MAX)

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        return compile_fx(graph, inputs)

    return backend


GRAPHS_MAX = 256
"""Limit on graphs of one function: a few for each wrapper of each world size."""


def _as_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _fused(
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer with its settings and `fused=True`."""
    plain = optimizer(parameters)
    if "fused" not in plain.defaults:
        raise InputError(
            f"fused_optimizer=true: {type(plain).__name__} has no fused form; torch's SGD, Adam, AdamW and Adagrad have"
        )
    accepted = {"params", *inspect.signature(type(plain)).parameters}
    settings, *groups = (
        {k: v for k, v in given.items() if k in accepted} | {"fused": True, "foreach": False}
        for given in (plain.defaults, *plain.param_groups)
    )
    return type(plain)(groups, **settings)
