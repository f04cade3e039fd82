"""Compare two runs of the same steps by the digests and elements that were kept of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from scaling.records.checkup import Layer, ParityStep
from scaling.worker.checks.fingerprint import Kept, distance, layer

Tensors = dict[str, torch.Tensor]
"""Elements that `fingerprint.spread(.., COMPARED)` kept of each tensor, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What was kept of one step."""

    loss: float
    gradients: Tensors
    """Unscaled."""
    weights: Tensors
    digest: str
    """Digest of the loss, all gradients and all weights."""
    sums: str
    """Digest of the loss and all weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was kept of one run of the steps."""

    outputs: dict[str, Kept]
    """Outputs of every leaf module in the first forward, in order."""
    gradients: dict[str, Kept]
    """Gradients of the first step by parameter, unscaled."""
    steps: list[Step]
    scale: float
    step_ns: list[int]
    peak_bytes: int | None


def layers(found: Mapping[str, Kept], reference: Mapping[str, Kept]) -> tuple[Layer, ...]:
    """Compare every tensor with the reference's of the same name and shape, where there is one."""
    same = {
        n: reference[n] for n, kept in found.items() if n in reference and kept.shape == reference[n].shape
    }
    return tuple(layer(name, kept, same.get(name)) for name, kept in found.items())


def against(step: Step, reference: Step | None) -> ParityStep:
    """Compare one step with the reference's; errors are None without a reference."""
    expected = reference.loss if reference else math.nan
    known = reference.gradients if reference else {}
    errors = {n: distance(g, known[n]) for n, g in step.gradients.items() if n in known}
    worst = max(errors, key=lambda n: math.inf if errors[n] is None else errors[n] or 0.0, default="")
    finite = math.isfinite(step.loss)
    return ParityStep(
        loss=step.loss if finite else None,
        loss_error=abs(step.loss - expected) / (abs(expected) or 1.0)
        if finite and math.isfinite(expected)
        else None,
        gradient_error=_together(step.gradients, known),
        weight_error=_together(step.weights, reference.weights if reference else {}),
        worst_layer=worst,
        digest=step.digest,
    )


def parted(run: Run, again: Run) -> str:
    """The first layer, gradient or step that a repetition did not reproduce; empty if it reproduced all."""
    for name in _different(run.outputs, again.outputs, run.outputs):
        return name
    for name in _different(run.gradients, again.gradients, reversed(run.gradients)):
        return f"gradient of {name}"
    for index, (step, other) in enumerate(zip(run.steps, again.steps, strict=True)):
        if step.sums != other.sums:
            return f"step {index + 1}"
    return ""


def _different(one: Mapping[str, Kept], other: Mapping[str, Kept], names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if one[name].digest != other[name].digest)


def _together(found: Tensors, reference: Tensors) -> float | None:
    """The distance of all tensors taken as one vector."""
    names = [n for n in found if n in reference]
    if not names:
        return None
    whole = [torch.cat([part[n] for n in names]) for part in (found, reference)]
    return distance(*whole)
