"""A workload: a module, its batches, its loss and its optimizer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scaling.errors import InputError

MakeBatch = Callable[[int, torch.Generator], tuple[Any, Any]]
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training workload, made by a factory that `model._target_` names.

    `make_batch(n, generator)` returns `(inputs, targets)` of n samples; a step computes
    `loss(module(inputs), targets)`. `optimizer` takes the parameters. `blocks` are submodules whose activations
    `checkpointing=true` computes again in backward; the children of a Sequential need not be named.
    `tokens_per_sample` is a sequence's length, for tokens a second. `tensor_plan` says how tensor parallel divides the
    module, where that is not known: names of submodules and torch's styles (torch.distributed.tensor.parallel);
    `sequence_plan` the same for `parallel.sequence=true`.
    """

    module: torch.nn.Module
    make_batch: MakeBatch
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: MakeOptimizer
    blocks: Sequence[torch.nn.Module] = ()
    tokens_per_sample: int | None = None
    tensor_plan: Mapping[str, Any] | None = None
    sequence_plan: Mapping[str, Any] | None = None


def find(key: str, target: str, expected: str) -> Any:
    """Import a dotted path. InputError where that fails; `key` is the setting that holds the path."""
    module_name, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{key}={target}: cannot be imported ({error}); {expected} on the import path is expected"
        ) from error


def build(target: str, args: dict[str, Any]) -> Workload:
    """Import `target` and call it. InputError says what is missing."""
    workload = find("model._target_", target, "a callable")(**args)
    if not isinstance(workload, Workload):
        raise InputError(
            f"model._target_={target}: returned {type(workload).__name__}, a scaling.Workload is expected"
        )
    if not any(p.requires_grad for p in workload.module.parameters()):
        raise InputError(f"model._target_={target}: has no trainable parameter; DDP needs at least one")
    return workload


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Plain SGD; the rate is small enough that long runs on synthetic data stay finite."""
    return torch.optim.SGD(parameters, lr=1e-4)
