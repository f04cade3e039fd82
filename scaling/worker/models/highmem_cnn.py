"""Three wide 7x7 convolutions and a large linear layer, with or without batch normalisation."""

from __future__ import annotations

from torch import nn

from scaling.worker.data.workload import Workload, sgd
from scaling.worker.models.vision import classifier


def build(
    image: int, channels: int, hidden: int, classes: int, batch_norm: bool = False, synchronised: bool = False
) -> Workload:
    """Batches are (n, 3, image, image) with n class labels.

    Parameters: 147 C + 2 (49 C^2) in the convolutions, C (image/2)^2 hidden in the linear layer. `batch_norm` puts a
    BatchNorm behind each convolution; `synchronised` takes its statistics over all ranks.
    """
    kind = nn.SyncBatchNorm if synchronised else nn.BatchNorm2d

    def wide(before: int) -> list[nn.Module]:
        norm = [kind(channels)] if batch_norm else []
        return [nn.Conv2d(before, channels, kernel_size=7, padding=3), *norm, nn.ReLU()]

    module = nn.Sequential(
        *wide(3),
        *wide(channels),
        nn.MaxPool2d(2),
        *wide(channels),
        nn.Flatten(),
        nn.Linear(channels * (image // 2) ** 2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )

    return classifier(module, image, classes, sgd)
