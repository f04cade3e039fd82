"""What is kept of a tensor: a digest to see whether two are equal, a few elements to see by how much they differ."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterable

import torch

from scaling.checkup import Layer

SAMPLES = 64
COMPARED = 2**14
"""Elements of a tensor that are compared with the reference's."""


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Of all bytes, in order."""
    found = hashlib.blake2b(digest_size=12)
    for tensor in tensors:
        host = tensor.detach().to("cpu").contiguous()
        size = host.numel() * host.element_size()
        if size:
            found.update((ctypes.c_char * size).from_address(host.data_ptr()))
    return found.hexdigest()


def spread(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """At most `count` evenly spaced elements, float64, on the CPU."""
    flat = tensor.detach().reshape(-1)
    step = max(1, -(-flat.numel() // count))
    return flat[::step].to("cpu", torch.float64)


def distance(x: torch.Tensor, reference: torch.Tensor) -> float | None:
    """|x - reference| / |reference|; None where it is not finite."""
    norm = float(torch.linalg.vector_norm(reference))
    apart = float(torch.linalg.vector_norm(x - reference))
    found = apart / norm if norm else apart
    return found if math.isfinite(found) else None


def layer(name: str, tensor: torch.Tensor, reference: torch.Tensor | None) -> Layer:
    """A tensor's fingerprint; `reference` is the float64 run's, as `spread(.., COMPARED)` left it."""
    some = spread(tensor, COMPARED)
    samples = [x if math.isfinite(x) else None for x in spread(tensor, SAMPLES).tolist()]
    return Layer(
        name=name,
        digest=digest([tensor]),
        samples=tuple(samples),
        error=None if reference is None else distance(some, reference),
        not_finite=int((~torch.isfinite(tensor.detach())).sum()),
        flushed=0 if reference is None else int(((some == 0) & (reference != 0)).sum()),
    )
