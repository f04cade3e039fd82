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
CHUNK = 2**22
"""Elements that are summed at a time on a GPU."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MIX = (-7046029254386353131, -4658895280553007687)
"""Odd multipliers of splitmix64 (https://prng.di.unimi.it/splitmix64.c), as signed numbers."""


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
    """Add all bytes, in order, to each digest; of a GPU's tensor its sums, since to copy and hash takes minutes."""
    for tensor in tensors:
        if tensor.is_cuda:
            content = f"{tensor.dtype}{tuple(tensor.shape)}{sums(tensor)}".encode()
            for each in digests:
                each.update(content)
            continue
        host = tensor.detach().to("cpu").contiguous()
        size = host.numel() * host.element_size()
        for each in digests if size else ():
            each.update((ctypes.c_char * size).from_address(host.data_ptr()))


def sums(tensor: torch.Tensor) -> list[int]:
    """One number for each CHUNK elements, computed where the tensor is: the sum of bits times weights, modulo 2^64.

    The weights are odd, so a change of one element always shows. They are mixed, so several cancel only by chance. The
    order of additions does not matter.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        return sums(torch.view_as_real(flat))
    bits = flat.view(_INTEGERS[flat.element_size()])
    weights = _weights(min(CHUNK, bits.numel()), tensor.device)
    found = [
        (part.to(torch.int64) * weights[: part.numel()]).sum()
        for part in torch.split(bits, CHUNK)
        if part.numel()
    ]
    return torch.stack(found).tolist() if found else []


def _weights(count: int, device: torch.device) -> torch.Tensor:
    mixed = torch.arange(1, count + 1, device=device, dtype=torch.int64) * _MIX[0]
    mixed = (mixed ^ (mixed >> 29)) * _MIX[1]
    return (mixed ^ (mixed >> 32)) | 1


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
