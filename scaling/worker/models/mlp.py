"""Linear layers with ReLU between them."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from scaling.worker.data.workload import Workload, sgd


def build(features: int, width: int, depth: int, classes: int) -> Workload:
    """`depth` hidden layers of `width`; batches are (n, features) with n class labels."""
    sizes = [features, *[width] * depth]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]

    def make_batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(n, features, generator=generator), torch.randint(
            classes, (n,), generator=generator
        )

    return Workload(
        module=nn.Sequential(*layers, nn.Linear(width, classes)),
        make_batch=make_batch,
        loss=nn.functional.cross_entropy,
        optimizer=sgd,
    )
