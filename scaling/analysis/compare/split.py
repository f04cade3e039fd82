"""Split a throughput ratio into a factor of the devices and a factor of the links. Pure.

Each run is put through the simulation (scaling/analysis/predict/whatif.py) with the other's links, and with
compute as many times as fast as the other's. Either change can be made first, from either run, so

    fabric  = sqrt( T_base / T_base(other's links)   x  T_other(base's links)   / T_other )
    compute = sqrt( T_base / T_base(other's compute) x  T_other(base's compute) / T_other )
    left    = (T_base / T_other) / (compute x fabric)

which is the same whichever run is called the base (the two-sided mean of L. S. Shapley, "A value for
n-person games", 1953, over logarithms). Faster compute hides less of the transfer: this counts as
compute here, while a difference of two waterfalls would attribute it to the link. `left` is what neither
explains: late ranks, neighbours, DDP's own cost, input, and the model's error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scaling.analysis.predict.change import Change, Source
from scaling.analysis.predict.prediction import predict
from scaling.analysis.predict.whatif import COMPUTE
from scaling.analysis.results import Measured, Split
from scaling.analysis.statistics.rounds import Floats, interval


def split(base: Source, other: Source, ratio: Measured) -> Split:
    """`ratio`: throughput of `other` over `base` at their world size, with the same batch.

    The two sources must be resampled with different seeds.
    """
    faster = _alone(base) / _alone(other)
    fewer = min(base, other, key=lambda source: source.units - source.groups)
    alone = interval(float(faster[0]), faster[1:], fewer.units, groups=fewer.groups, positive=True)
    fabric = _between(_gain(base, Change(fabric=(other.link,))), _gain(other, Change(fabric=(base.link,))))
    compute = _between(
        _gain(base, Change(compute_scale=alone.value)),
        _gain(other, Change(compute_scale=1 / alone.value)),
        also=alone.log_half_width,
    )
    left = ratio.value / (compute.value * fabric.value)
    return Split(
        compute=compute,
        fabric=fabric,
        left=Measured.around_log(
            left, _quadrature([x.log_half_width for x in (ratio, compute, fabric)]), ratio.n
        ),
        alone=alone,
    )


def _alone(source: Source) -> Floats:
    """Compute time of one rank alone in a step, ns, S."""
    found: Floats = np.sum([source.alone[phase] for phase in COMPUTE], axis=0)
    return found


def _gain(source: Source, change: Change) -> Measured:
    return predict(source, change)["gain"]


def _between(there: Measured, back: Measured, also: float | None = 0.0) -> Measured:
    """sqrt(there / back), `back` being the gain of the way back.

    Both rest on the same two runs, so their errors (of logarithms) are added and not taken in quadrature.
    """
    spreads = (there.log_half_width, back.log_half_width)
    known = [s for s in spreads if s is not None]
    both = sum(known) / 2 if len(known) == len(spreads) else None
    return Measured.around_log(
        math.sqrt(there.value / back.value), _quadrature([both, also]), min(there.n, back.n)
    )


def _quadrature(spreads: Sequence[float | None]) -> float | None:
    known = [s for s in spreads if s is not None]
    return math.hypot(*known) if len(known) == len(spreads) else None
