"""Scaling laws over the measured speedups S(n). Pure, and never an input of a prediction.

    Karp-Flatt   e(n) = (1/S(n) - 1/n) / (1 - 1/n)
    USL          S(n) = n / (1 + sigma (n - 1) + kappa n (n - 1))

Sources: Karp, Flatt, "Measuring Parallel Processor Performance", CACM 33(5), 1990; Gunther, "Guerrilla Capacity
Planning", Springer, 2007, chapters 4 to 6, the Universal Scalability Law.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaling.analysis.results import Fits, KarpFlatt, Measured, Point, Usl
from scaling.analysis.statistics.rounds import student

SIZES_MIN = 4
"""World sizes above 1 that a fit of two numbers takes."""
ERROR_MIN = 5e-10
"""Smallest error of n/S, so that a size whose interval has no length does not outweigh all others."""


def fits(points: Sequence[Point], mode: str) -> Fits:
    """Both laws, of speedups over one rank: nothing where the base is another world size."""
    known = [
        (p.world_size, p.speedup)
        for p in points
        if p.world_size > 1 and p.base_world_size == 1 and p.speedup is not None
    ]
    serial = [KarpFlatt(world_size=n, serial_fraction=_serial(n, s)) for n, s in known]
    return Fits(karp_flatt=tuple(serial) if mode == "strong" else (), usl=_usl(known))


def _serial(n: int, speedup: Measured) -> Measured:
    """The part of the work that all ranks together do no faster than one."""
    return (1 / speedup - 1 / n) / (1 - 1 / n)


def _usl(known: Sequence[tuple[int, Measured]]) -> Usl | None:
    """None below SIZES_MIN sizes with an interval.

    n/S - 1 = sigma (n - 1) + kappa n (n - 1) is fitted by least squares, each size weighted by its own error, neither
    number below zero. Where the sizes lie further from the law than their errors, the intervals are wider by as much.
    """
    sure = [(n, s) for n, s in known if s.surely_above(0)]
    if len(sure) < SIZES_MIN:
        return None
    from scipy.optimize import nnls  # type: ignore[attr-defined]  # noqa: PLC0415  slow to import

    n = np.array([size for size, _ in sure], dtype=float)
    found = n / np.array([s.value for _, s in sure]) - 1
    half = np.array([(size / s).half_width for size, s in sure])
    error = np.maximum(half, ERROR_MIN) / np.array([student(max(s.n - 1, 1)) for _, s in sure])
    law = np.stack([n - 1, n * (n - 1)], axis=1) / error[:, None]
    fitted, missed = nnls(law, found / error)
    beyond = max(1.0, missed / (len(n) - 2) ** 0.5)
    halves = student(len(n) - 2) * beyond * np.sqrt(np.diag(np.linalg.inv(law.T @ law)))
    sigma, kappa = (
        Measured.around(float(value), float(half), len(n)).not_below(0.0)
        for value, half in zip(fitted, halves, strict=True)
    )
    # Where there may be no coherency cost at all, the data show no peak.
    peak = ((1 - sigma.value) / kappa.value) ** 0.5 if kappa.surely_above(0) and sigma.value < 1 else None
    return Usl(sigma=sigma, kappa=kappa, peak_world_size=peak)
