"""What of a throughput ratio the devices make, and what the links. Pure.

Each run is put through the simulation (scaling/analysis/whatif.py) with the other's links, and with
compute as many times as fast as the other's. Either change can be made first, from either run, so

    fabric  = sqrt( T_base / T_base(other's links)   x  T_other(base's links)   / T_other )
    compute = sqrt( T_base / T_base(other's compute) x  T_other(base's compute) / T_other )
    left    = (T_base / T_other) / (compute x fabric)

which is the same whichever run is called the base (the two-sided mean of L. S. Shapley, "A value for
n-person games", 1953, over logarithms). Compute that gets faster hides less of the transfer: that belongs to
compute here, where a difference of two waterfalls would charge it to the link. `left` is what neither
explains: late ranks, neighbours, DDP's own cost, input, and the model's own error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scaling.analysis.change import Change, Source
from scaling.analysis.predict import predict
from scaling.analysis.results import Measured, Split
from scaling.analysis.stats import Floats, interval
from scaling.analysis.whatif import COMPUTE


def split(base: Source, other: Source, ratio: Measured) -> Split:
    """`ratio`: throughput of `other` over `base` at their world size, in one and the same batch.

    The two sources' resampled values are to be drawn apart (another seed each).
    """
    faster = _alone(base) / _alone(other)
    fewer = min(base, other, key=lambda source: source.units - source.groups)
    alone = interval(float(faster[0]), faster[1:], fewer.units, groups=fewer.groups, positive=True)
    fabric = _between(_gain(base, Change(fabric=(other.link,))), _gain(other, Change(fabric=(base.link,))))
    compute = _between(
        _gain(base, Change(compute_scale=alone.value)),
        _gain(other, Change(compute_scale=1 / alone.value)),
        also=_spread(alone),
    )
    left = ratio.value / (compute.value * fabric.value)
    return Split(
        compute=compute,
        fabric=fabric,
        left=_around(left, _quadrature([_spread(x) for x in (ratio, compute, fabric)]), ratio.n),
        alone=alone,
    )


def _alone(source: Source) -> Floats:
    """What a rank alone computes in a step, ns, S."""
    found: Floats = np.sum([source.alone[phase] for phase in COMPUTE], axis=0)
    return found


def _gain(source: Source, change: Change) -> Measured:
    return predict(source, change)["gain"]


def _between(there: Measured, back: Measured, also: float | None = 0.0) -> Measured:
    """sqrt(there / back), `back` being the gain of the way back.

    Both rest on the same two runs, so their errors (of logarithms) are added and not taken in quadrature.
    """
    spreads = (_spread(there), _spread(back))
    known = [s for s in spreads if s is not None]
    both = sum(known) / 2 if len(known) == len(spreads) else None
    return _around(math.sqrt(there.value / back.value), _quadrature([both, also]), min(there.n, back.n))


def _spread(number: Measured) -> float | None:
    """Half of the interval's length of the logarithm; None without an interval."""
    if number.low is None or number.high is None or number.low <= 0:
        return None
    return math.log(number.high / number.low) / 2


def _quadrature(spreads: Sequence[float | None]) -> float | None:
    known = [s for s in spreads if s is not None]
    return math.hypot(*known) if len(known) == len(spreads) else None


def _around(value: float, spread: float | None, n: int) -> Measured:
    if spread is None:
        return Measured(value=value, n=n)
    return Measured(value=value, low=value * math.exp(-spread), high=value * math.exp(spread), n=n)
