"""Shared by the presets of known models: import transformers, reduce its outputs to tensors, make optimizers."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from scaling.errors import InputError


def transformers() -> Any:
    """The transformers package, silenced. InputError if it is missing. Models are built from configs, no downloads."""
    try:
        package: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise InputError(
            f"this model needs transformers ({error}); pip install 'scaling-harness[models]'"
        ) from error
    package.logging.set_verbosity_error()
    return package


def sizes(width: int, layers: int, heads: int, feedforward: int) -> dict[str, int]:
    """A transformer's sizes by the names that most configs of transformers have for them."""
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": feedforward,
    }


def built(family: str, head: str, **config: Any) -> nn.Module:
    """The model `<family><head>` of transformers with new weights, from `<family>Config(**config)`."""
    package = transformers()
    configuration = getattr(package, f"{family}Config")(**config)
    return getattr(package, f"{family}{head}")(configuration)  # type: ignore[no-any-return]


class Logits(nn.Module):
    """A model of transformers that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(n, ...) inputs to (n, ..., classes)."""
        return self.model(inputs).logits  # type: ignore[no-any-return]


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW, usual for transformers: two states a parameter. The low rate keeps long runs on random data finite."""
    return torch.optim.AdamW(parameters, lr=1e-6)


def momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum, usual for convolutional networks: one state a parameter."""
    return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9)
