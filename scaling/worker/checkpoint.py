"""Activation checkpointing of the blocks that a model repeats: memory against a second forward."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


@contextlib.contextmanager
def checkpointed(module: torch.nn.Module) -> Iterator[None]:
    """Inside, each repeated block keeps its inputs alone and is computed again in backward."""
    blocks = repeated(module)
    try:
        for block in blocks:
            forward = block.forward
            block.forward = functools.partial(_recomputed, forward)
        yield
    finally:
        for block in blocks:
            block.__dict__.pop("forward", None)


def repeated(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Blocks that stand beside others of their class in a list, outermost first and none within another.

    What a model repeats are its layers (transformers) or the blocks of its stages (ResNet). A model
    without any is one block.
    """
    found: list[torch.nn.Module] = []
    left = [module]
    while left:
        here = left.pop()
        if isinstance(here, torch.nn.ModuleList | torch.nn.Sequential):
            kinds = [type(child) for child in here]
            chosen = [c for c in here if kinds.count(type(c)) > 1 and any(True for _ in c.children())]
            found += chosen
            left += [c for c in here if not any(c is one for one in chosen)]
        else:
            left += list(here.children())
    return found or [module]


def _recomputed(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
