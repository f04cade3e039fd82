"""Real parameters and real DDP traffic, compute made of sleeps.

A sleeping rank needs no core, so several ranks are valid on few cores, and the time that
compute takes is known beforehand.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from scaling.worker.workload import Workload, sgd

FORWARD_SHARE = 1 / 3
"""Of a step's compute; backward takes the rest, the usual two to one."""


class _SleepingLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seconds_a_sample: float) -> torch.Tensor:
        ctx.seconds = seconds_a_sample * x.shape[0]
        ctx.save_for_backward(weight)
        time.sleep(ctx.seconds * FORWARD_SHARE)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (weight,) = ctx.saved_tensors
        time.sleep(ctx.seconds * (1 - FORWARD_SHARE))
        return grads[0], torch.zeros_like(weight), None


class _Layer(nn.Module):
    def __init__(self, elements: int, seconds_a_sample: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self.seconds_a_sample = seconds_a_sample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _SleepingLayer.apply(x, self.weight, self.seconds_a_sample)  # type: ignore[no-any-return, no-untyped-call]


def build(param_mb: float, layers: int, compute_ms: float, reference_batch: int) -> Workload:
    """`param_mb` MiB of fp32 in equal layers; a step of `reference_batch` samples sleeps `compute_ms`."""
    elements = max(1, round(param_mb * 2**20 / 4 / layers))
    seconds_a_sample = compute_ms / 1e3 / reference_batch / layers

    def make_batch(n: int, _generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(n, 1, requires_grad=True), torch.zeros(n, 1)

    def loss(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        return outputs.mean()

    module = nn.Sequential(*[_Layer(elements, seconds_a_sample) for _ in range(layers)])
    return Workload(module=module, make_batch=make_batch, loss=loss, optimizer=sgd)
