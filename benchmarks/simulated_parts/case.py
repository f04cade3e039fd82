"""What a case of the simulated accelerator is made of, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

KIB, MIB = 2**10, 2**20
CLOCK_BOUND_NS = 8_000
"""Clocks of the ranks are compared to within this; each is off by a part of it."""


LAUNCH_BOUND: dict[str, Any] = {
    "product_us": 100.0,
    "launch_us": 150.0,
    "link": ((0.0, 20.0), (64.0 * MIB, 1400.0)),
}
"""Changes of a case: the device waits for the host to launch its kernels, and the link for neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One launch of DDP on simulated devices. Times are us."""

    ranks: int
    seed: int
    widths: tuple[int, ...]
    """Of the layers, each a square matrix of fp32."""
    product_us: float
    """A matrix product, whatever its size."""
    link: tuple[tuple[float, float], ...]
    """(bytes on the wire, us): piecewise, with several bandwidths and a step where the protocol changes."""
    late_rank: int = -1
    late_on: str = ""
    """host or stream."""
    late_us: float = 0.0
    noise_seed: int = 0
    noise: float = 0.0
    """Of kernels and of the host: standard deviation of a factor's logarithm."""
    launch_us: float = 4.0
    """The host's cost of a launch."""
    clocks: bool = True
    """Whether the ranks' clocks are off."""
    rounds: int = 4
    steps: int = 6

    @property
    def without_late(self) -> Case:
        """The same without its late rank."""
        return replace(self, late_rank=-1, late_on="", late_us=0.0)

    @property
    def name(self) -> str:
        """For the table."""
        late = (
            f", rank {self.late_rank} late by {self.late_us / 1e3:.0f} ms on its {self.late_on}"
            if self.late_on
            else ""
        )
        return f"{self.ranks} ranks{late}"


def draw(seed: int, ranks: int, late_on: str = "", **changes: Any) -> Case:
    """A case; the same seed draws the same link and layers for any number of ranks."""
    rng = random.Random(seed)
    widths = tuple(rng.choice((192, 256, 320, 384)) for _ in range(rng.randint(5, 8)))
    case = Case(
        ranks=ranks,
        seed=seed,
        widths=widths,
        product_us=rng.uniform(1500, 4000),
        link=_link(rng),
    )
    if late_on:
        late = random.Random(f"{seed}/{ranks}/{late_on}")
        case = replace(
            case, late_rank=late.randrange(ranks), late_on=late_on, late_us=late.uniform(8e3, 25e3)
        )
    return replace(case, **changes)


def _link(rng: random.Random) -> tuple[tuple[float, float], ...]:
    """Latency and a slow protocol, a faster one from 32 to 128 KiB on, the full bandwidth from 256 KiB to 1 MiB on."""
    us, last, points = rng.uniform(20, 150), 0.0, []
    for to, gb_s in (
        (rng.uniform(32, 128) * KIB, rng.uniform(0.05, 0.1)),
        (rng.uniform(256, 1024) * KIB, rng.uniform(0.1, 0.2)),
        (64 * MIB, rng.uniform(0.2, 0.4)),
    ):
        points.append((last, us))
        us += (to - last) / gb_s / 1e3
        points.append((to, us))
        us += rng.uniform(0, 100)  # a step, where the protocol changes
        last = to + 1
    return tuple(points)
