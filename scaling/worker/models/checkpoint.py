"""Activation checkpointing: save memory by running the forward again in backward."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from scaling.errors import InputError
from scaling.worker.data.workload import Workload


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
        for module, own in before:
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.forward = own

    return undo


def repeated(module: nn.Module) -> list[nn.Module]:
    """Blocks that appear with others of their class in a list; outermost first, none within another.

    A model repeats its layers (transformers) or the blocks of its stages (ResNet).
    """
    found: list[nn.Module] = []
    left = [module]
    while left:
        here = left.pop()
        if isinstance(here, nn.ModuleList | nn.Sequential):
            kinds = [type(child) for child in here]
            chosen = [c for c in here if kinds.count(type(c)) > 1 and any(True for _ in c.children())]
            found += chosen
            left += [c for c in here if not any(c is one for one in chosen)]
        else:
            left += list(here.children())
    return found


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
