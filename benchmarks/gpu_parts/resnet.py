"""ResNet-50 (He et al. 2016) in plain torch, since the machine with the GPU may have no other package."""

from __future__ import annotations

import torch
from torch import nn

from scaling.worker.data.workload import Workload, sgd

DEPTHS = (3, 4, 6, 3)
WIDTH, CLASSES, IMAGE = 64, 1000, 224
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions plus the input, which a 1x1 convolution resizes where needed."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.layers = nn.Sequential(
            *(_convolution(channels, width, 1), nn.ReLU(inplace=True)),
            *(_convolution(width, width, 3, stride), nn.ReLU(inplace=True)),
            _convolution(width, out, 1),
        )
        same = stride == 1 and channels == out
        self.beside = nn.Identity() if same else _convolution(channels, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, channels, h, w) -> (n, 4 width, h / stride, w / stride)."""
        return torch.relu(self.layers(x) + self.beside(x))


def _convolution(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))


def resnet(depths: tuple[int, ...] = DEPTHS, width: int = WIDTH, classes: int = CLASSES) -> nn.Module:
    """(n, 3, h, w) -> (n, classes); 25,557,032 parameters with the defaults."""
    layers: list[nn.Module] = [_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(channels, width << stage, stride))
            channels = EXPANSION * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def workload(module: nn.Module, image: int = IMAGE, classes: int = CLASSES) -> Workload:
    """The model with random images and labels, cross entropy and plain SGD."""

    def make_batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(n, 3, image, image, generator=generator)
        return images, torch.randint(classes, (n,), generator=generator)

    return Workload(module=module, make_batch=make_batch, loss=nn.functional.cross_entropy, optimizer=sgd)
