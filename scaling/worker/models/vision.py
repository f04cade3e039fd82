"""Image classification: ResNet (He et al. 2016) and ViT (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from scaling.worker.data.workload import MakeOptimizer, Workload
from scaling.worker.models.extra import Logits, adamw, built, momentum, sizes


def resnet(block: str, depths: Sequence[int], widths: Sequence[int], image: int, classes: int) -> Workload:
    """ResNet. `block` is `basic` or `bottleneck`; `depths` and `widths` (output channels) have one entry a stage."""
    model = built(
        "ResNet",
        "ForImageClassification",
        layer_type=block,
        depths=list(depths),
        hidden_sizes=list(widths),
        num_labels=classes,
    )
    return classifier(Logits(model), image, classes, momentum)


def vit(
    patch: int, width: int, layers: int, heads: int, feedforward: int, image: int, classes: int
) -> Workload:
    """ViT. An image becomes (image / patch)^2 tokens and a class token, each `width` wide."""
    model = built(
        "ViT",
        "ForImageClassification",
        **sizes(width, layers, heads, feedforward),
        image_size=image,
        patch_size=patch,
        num_labels=classes,
    )
    return classifier(Logits(model), image, classes, adamw)


def classifier(module: nn.Module, image: int, classes: int, optimizer: MakeOptimizer) -> Workload:
    """Batches are (n, 3, image, image) with n class labels."""

    def make_batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(n, 3, image, image, generator=generator)
        return images, torch.randint(classes, (n,), generator=generator)

    return Workload(
        module=module, make_batch=make_batch, loss=nn.functional.cross_entropy, optimizer=optimizer
    )
