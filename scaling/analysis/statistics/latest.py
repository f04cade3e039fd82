"""How late the latest of many is."""

from __future__ import annotations

import numpy as np


def latest(ranks: int) -> float:
    """Expected largest of n standard normal draws: the integral of 1 - F^n above 0 less that of F^n below."""
    if ranks == 1:
        return 0.0
    from scipy.special import log_ndtr  # noqa: PLC0415  slow to import

    above = np.linspace(0.0, 10.0, 4001)
    falls = 1 - np.exp(ranks * log_ndtr(above)) - np.exp(ranks * log_ndtr(-above))
    return float(((falls[1:] + falls[:-1]) / 2 * np.diff(above)).sum())  # by trapezia
