"""Three wide 7x7 convolutions and a large linear layer."""

from __future__ import annotations

import functools

import torch
from torch import nn

from scaling.worker.data.workload import Workload, sgd


def build(image: int, channels: int, hidden: int, classes: int) -> Workload:
    """Batches are (n, 3, image, image) with n class labels.

    Parameters: 147 C + 2 (49 C^2) in the convolutions, C (image/2)^2 hidden in the linear layer.
    """
    wide = functools.partial(nn.Conv2d, kernel_size=7, padding=3)
    module = nn.Sequential(
        wide(3, channels),
        nn.ReLU(),
        wide(channels, channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        wide(channels, channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * (image // 2) ** 2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )

    def make_batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(n, 3, image, image, generator=generator)
        return images, torch.randint(classes, (n,), generator=generator)

    return Workload(module=module, make_batch=make_batch, loss=nn.functional.cross_entropy, optimizer=sgd)
