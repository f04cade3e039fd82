"""Assign parameters to DDP's buckets, from when their gradients are ready.

DDP fills buckets in the order in which gradients came in its first step: a bucket is closed by the
parameter that brings it to its limit, and the first may have a limit of its own (torch,
csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size and Reducer::rebuild_buckets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.statistics.rounds import Floats
from scaling.settings.run import DEFAULT_BUCKET_MB

FIRST_BUCKET_BYTES = 2**20
"""Limit of the first bucket where DDP is not given one (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)."""
PIECES = 16
"""Where single parameters are not known, a bucket counts as this many equal ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """The parameters' gradients, any order: bytes, P, and when each is ready as a part of backward, S x P."""

    sizes: tuple[int, ...]
    ready: Floats
    exact: bool = True
    """False if pieces of the measured buckets stand for parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """In the order of reduction: bytes, K, and the part of backward at which each is ready, S x K."""

    sizes: tuple[int, ...]
    ready: Floats


def assign(sizes: Sequence[int], bucket_cap_mb: float) -> list[list[int]]:
    """Indices of each bucket's parameters; `sizes` are bytes in the order in which gradients are ready."""
    cap = bucket_cap_mb * 2**20
    limit = FIRST_BUCKET_BYTES if bucket_cap_mb == DEFAULT_BUCKET_MB else cap
    found: list[list[int]] = [[]]
    filled = 0
    for index, size in enumerate(sizes):
        found[-1].append(index)
        filled += size
        if filled >= limit:
            found.append([])
            filled, limit = 0, cap
    return [members for members in found if members]


def bucketed(gradients: Gradients, bucket_cap_mb: float) -> Buckets:
    """The buckets that DDP makes at this cap, MiB."""
    order = np.argsort(gradients.ready[0], kind="stable")
    sizes = [gradients.sizes[i] for i in order]
    members = assign(sizes, bucket_cap_mb)
    ready = np.stack([gradients.ready[:, order[m]].max(axis=1) for m in members], axis=-1)
    return Buckets(sizes=tuple(sum(sizes[i] for i in m) for m in members), ready=ready)


def pieces(buckets: Buckets) -> Gradients:
    """Gradients spread evenly between one bucket's end and the next, where only buckets are known."""
    sizes: list[int] = []
    ready: list[Floats] = []
    before = np.zeros_like(buckets.ready[:, 0])
    for k, size in enumerate(buckets.sizes):
        whole, rest = divmod(size, PIECES)
        at = buckets.ready[:, k]
        for piece in range(PIECES):
            sizes.append(whole + (rest if piece == PIECES - 1 else 0))
            ready.append(before + (at - before) * (piece + 1) / PIECES)
        before = at
    return Gradients(sizes=tuple(sizes), ready=np.stack(ready, axis=-1), exact=False)
