"""Object detection: RT-DETR (Zhao et al. 2024) and YOLOS (Fang et al. 2021).

Both match predictions to objects before the loss. This Hungarian matching runs on the host, in the training step, as
in real training. In evaluation a forward gives class logits and boxes; the later work of a deployment (thresholds,
scaling the boxes back) is not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from scaling.worker.data.workload import Workload
from scaling.worker.models.extra import adamw, built, sizes, transformers

CLASSES = 80
"""Classes of COCO, which RT-DETR uses as labels; YOLOS keeps the 91 ids of the original numbering."""
COCO_IDS = 91


class Detector(nn.Module):
    """A detector that takes (images, labels). It returns the loss in training, (logits, boxes) in evaluation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: tuple[torch.Tensor, list[dict[str, torch.Tensor]]]) -> Any:
        """Images are (n, 3, height, width); boxes (centre, width, height) are fractions of the image."""
        images, labels = inputs
        if self.training:
            return self.model(images, labels=labels).loss
        detections = self.model(images)
        return detections.logits, detections.pred_boxes


def rtdetr(
    block: str,
    depths: Sequence[int],
    widths: Sequence[int],
    decoder_layers: int,
    csp_expansion: float,
    queries: int,
    objects: int,
    image: int,
) -> Workload:
    """RT-DETR. `block`, `depths`, `widths` describe the ResNet-vd backbone; its last three stages feed the encoder."""
    package = transformers()
    backbone = package.RTDetrResNetConfig(
        layer_type=block,
        depths=list(depths),
        hidden_sizes=list(widths),
        downsample_in_bottleneck=False,
        downsample_in_first_stage=False,
        out_features=["stage2", "stage3", "stage4"],
    )
    model = built(
        "RTDetr",
        "ForObjectDetection",
        backbone_config=backbone,
        encoder_in_channels=list(widths)[1:],
        decoder_layers=decoder_layers,
        hidden_expansion=csp_expansion,
        num_queries=queries,
        num_labels=CLASSES,
    )
    return _detector(Detector(model), (image, image), objects, CLASSES)


def yolos(
    width: int,
    layers: int,
    heads: int,
    feedforward: int,
    position_grid: Sequence[int],
    middle_positions: bool,
    queries: int,
    objects: int,
    height: int,
    image: int,
) -> Workload:
    """YOLOS. `position_grid`: image size (height, width) of the position embeddings; other sizes interpolate them."""
    model = built(
        "Yolos",
        "ForObjectDetection",
        **sizes(width, layers, heads, feedforward),
        image_size=list(position_grid),
        num_detection_tokens=queries,
        use_mid_position_embeddings=middle_positions,
        num_labels=COCO_IDS,
    )
    return _detector(Detector(model), (height, image), objects, COCO_IDS)


def _detector(module: nn.Module, size: tuple[int, int], objects: int, classes: int) -> Workload:
    def labels(generator: torch.Generator) -> dict[str, torch.Tensor]:
        corner, extent = torch.rand(2, objects, 2, generator=generator).unbind()
        extent = 0.05 + 0.25 * extent
        centre = extent / 2 + corner * (1 - extent)
        return {
            "class_labels": torch.randint(classes, (objects,), generator=generator),
            "boxes": torch.cat([centre, extent], dim=1),
        }

    def make_batch(n: int, generator: torch.Generator) -> tuple[Any, None]:
        images = torch.randn(n, 3, *size, generator=generator)
        return (images, [labels(generator) for _ in range(n)]), None

    def loss(output: torch.Tensor, _targets: None) -> torch.Tensor:
        return output

    return Workload(module=module, make_batch=make_batch, loss=loss, optimizer=adamw)
