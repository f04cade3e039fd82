"""Published scaling tables, and what others' trainings kept at the world sizes of a run. Never a verdict by itself.

    efficiency = (throughput at n / n) / (throughput at m / m)      m: the run's base world size

Only series with both sizes count, in the run's kind of scaling (weak or strong). Among them those of the same
generation of devices and the same strategy, as far as there are any.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from scaling.analysis.results import Analysis, OthersKept, OtherTraining
from scaling.reading import read_text

TABLE = Path(__file__).parent / "tables" / "scaling.csv"
MLPERF_TERMS = "figures from MLPerf logs are derived and not verified by MLCommons"
_SAID = ("source", "model", "device", "network", "strategy", "licence")
"""What a series says of its training."""
_GENERATION = re.compile(r"\b([AHBVPLT]\d{2,3}|GB?H?\d{3}|MI\d{3}X?|RTX \w+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSeries:
    """One training at several numbers of devices."""

    name: str
    source: str
    model: str
    device: str
    network: str
    strategy: str
    mode: str
    licence: str
    throughput: dict[int, float]
    """Of all devices, in a unit of its own."""

    @property
    def sharded(self) -> bool:
        """Whether the model's state is sharded over the devices."""
        return self.strategy.startswith("FSDP")

    def kept(self, base: int, devices: int) -> float | None:
        """Efficiency at `devices` over that at `base`; None where one of them was not published."""
        if base not in self.throughput or devices not in self.throughput:
            return None
        return self.throughput[devices] / devices / (self.throughput[base] / base)


@cache
def table() -> tuple[PublishedSeries, ...]:
    """All series that come with the program."""
    rows = list(csv.DictReader(read_text(TABLE).splitlines()))
    made = []
    for name, of in groupby(rows, key=lambda row: row["series"]):
        sizes = list(of)
        first = sizes[0]
        made.append(
            PublishedSeries(
                name=name,
                throughput={int(row["devices"]): float(row["throughput"]) for row in sizes},
                mode=first["mode"],
                **{name: first[name] for name in _SAID},
            )
        )
    return tuple(made)


def others(analysis: Analysis, *, sharded: bool = False) -> tuple[OthersKept, ...]:
    """What others kept at each world size of a run beyond its base; empty where nothing was published for it."""
    found = []
    for point in analysis.points:
        if point.efficiency is None or point.world_size <= point.base_world_size:
            continue
        kept = [
            (one, ratio)
            for one in table()
            if one.mode == analysis.run.mode
            and (ratio := one.kept(point.base_world_size, point.world_size)) is not None
        ]
        if kept:
            found.append(_closest(kept, analysis, point.world_size, point.base_world_size, sharded=sharded))
    return tuple(found)


def _closest(
    kept: Sequence[tuple[PublishedSeries, float]],
    analysis: Analysis,
    devices: int,
    base: int,
    *,
    sharded: bool,
) -> OthersKept:
    """Those most like the run."""
    named = _GENERATION.search(f"{analysis.run.device_name} {analysis.run.device}")
    generation = named[1].upper() if named else ""
    alike: list[str] = []
    same = {
        "strategy": [pair for pair in kept if pair[0].sharded == sharded],
        "device": [pair for pair in kept if generation and pair[0].device.upper() == generation],
    }
    for what, those in same.items():
        both = [pair for pair in kept if pair in those]
        if both:
            kept, alike = both, [*alike, what]
    ordered = sorted(kept, key=lambda pair: pair[1])
    return OthersKept(
        world_size=devices,
        base_world_size=base,
        mode=analysis.run.mode,
        alike=tuple(alike),
        others=tuple(
            OtherTraining(efficiency=ratio, series=one.name, **{name: getattr(one, name) for name in _SAID})
            for one, ratio in ordered
        ),
        terms=MLPERF_TERMS if any("MLCommons" in one.licence for one, _ in ordered) else "",
    )
