"""Small trainings on random numbers."""

from __future__ import annotations

from typing import Any

import torch

from scaling.worker.data.workload import Workload, sgd


def towards_zero(module: torch.nn.Module, *shape: int, **changes: Any) -> Workload:
    """Trains the module on samples of this shape, whose targets are zeros of the same shape, by SGD."""
    usual = {
        "make_batch": lambda n, g: (torch.randn(n, *shape, generator=g), torch.zeros(n, *shape)),
        "loss": torch.nn.functional.mse_loss,
        "optimizer": sgd,
    }
    return Workload(module=module, **usual | changes)
