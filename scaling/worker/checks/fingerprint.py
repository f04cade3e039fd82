"""Keep a digest of a tensor to see whether two are equal, and a few elements to see how much they differ."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from scaling.records.checkup import Layer

SAMPLES = 64
COMPARED = 2**14
"""Elements of a tensor that are compared with the reference's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of one tensor, on the CPU, so that the tensor can be released."""

    shape: tuple[int, ...]
    digest: str
    some: torch.Tensor
    """Elements from `spread(.., COMPARED)`."""
    samples: torch.Tensor
    """Elements from `spread(.., SAMPLES)`."""
    not_finite: int


def keep(tensor: torch.Tensor) -> Kept:
    """Keep what `layer` and comparisons need."""
    return Kept(
        shape=tuple(tensor.shape),
        digest=digest([tensor]),
        some=spread(tensor, COMPARED),
        samples=spread(tensor, SAMPLES),
        not_finite=int((~torch.isfinite(tensor.detach())).sum()),
    )


def fresh() -> Any:
    """A new digest for `feed`; `hexdigest()` returns its text."""
    return hashlib.blake2b(digest_size=12)


def feed(tensors: Iterable[torch.Tensor], *digests: Any) -> None:
    """Add all bytes, in order, to each digest."""
    for tensor in tensors:
        host = tensor.detach().to("cpu").contiguous()
        size = host.numel() * host.element_size()
        for each in digests if size else ():
            each.update((ctypes.c_char * size).from_address(host.data_ptr()))


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Digest of all bytes, in order."""
    found = fresh()
    feed(tensors, found)
    return str(found.hexdigest())


def spread(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """A copy of at most `count` evenly spaced elements, float64, on the CPU."""
    flat = tensor.detach().reshape(-1)
    step = max(1, -(-flat.numel() // count))
    return flat[::step].to("cpu", torch.float64, copy=True)


def distance(x: torch.Tensor, reference: torch.Tensor) -> float | None:
    """|x - reference| / |reference|; None if it is not finite."""
    norm = float(torch.linalg.vector_norm(reference))
    apart = float(torch.linalg.vector_norm(x - reference))
    found = apart / norm if norm else apart
    return found if math.isfinite(found) else None


def layer(name: str, kept: Kept, reference: Kept | None) -> Layer:
    """A tensor's fingerprint; `reference` is the tensor of the same shape in the float64 run."""
    return Layer(
        name=name,
        digest=kept.digest,
        samples=tuple(x if math.isfinite(x) else None for x in kept.samples.tolist()),
        error=None if reference is None else distance(kept.some, reference.some),
        not_finite=kept.not_finite,
        flushed=0 if reference is None else int(((kept.some == 0) & (reference.some != 0)).sum()),
    )
