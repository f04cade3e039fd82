"""What the presets of known models share: transformers by its config classes, and its outputs as tensors."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from scaling.errors import InputError


def transformers() -> Any:
    """The package, quiet; InputError says how to get it. Only configs and modules are used: nothing is downloaded."""
    try:
        package: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise InputError(
            f"this model needs transformers ({error}); pip install 'scaling-harness[models]'"
        ) from error
    package.logging.set_verbosity_error()
    return package


class Logits(nn.Module):
    """A model of transformers whose output is its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(n, ...) inputs to (n, ..., classes)."""
        return self.model(inputs).logits  # type: ignore[no-any-return]


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """As transformers are trained: two states a parameter. The rate keeps long runs on made-up data finite."""
    return torch.optim.AdamW(parameters, lr=1e-6)


def momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """As convolutional networks are trained: one state a parameter."""
    return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9)
