"""How long the links are busy in a step of a plain loop, beside what `scaling run` says of the same step.

A link does not always carry its rate: data of a later bucket may be queued in it ahead of what a late rank waits for.
What any program sees there is the truth for a run over the same links.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hosts import run_on_hosts

LOOP = Path(__file__).with_name("loop.py")
LATE_RANK = 1
STEPS, BATCH = 40, 8
T_95 = 2.776
"""Student's t for STEPS / BATCH - 1 degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """How long the links are busy in a step, ms, with the half width of its 95 % interval."""

    mean_ms: float
    half_ms: float

    def apart(self, other: Busy) -> float:
        """How far this is from another, as a share of that."""
        return self.mean_ms / other.mean_ms - 1

    def same(self, other: Busy) -> bool:
        """Whether the interval of the difference holds nothing."""
        return abs(self.mean_ms - other.mean_ms) <= math.hypot(self.half_ms, other.half_ms)


def busy_of(
    folder: Path, *, buckets: Sequence[int], compute_ms: float, late_ms: float, hosts: int, rate: str
) -> Busy:
    """Of a loop over emulated hosts with a rank each, measured once and kept in `folder`."""
    kept = folder / "busy.json"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        asked = {"buckets": list(buckets), "compute_ms": compute_ms, "late_ms": late_ms}
        asked |= {"late_rank": LATE_RANK, "steps": STEPS}
        run_on_hosts(str(LOOP), [str(folder), json.dumps(asked)], hosts=hosts, rate=rate, folder=folder)
        ranks = [json.loads((folder / f"step-{rank}.json").read_text()) for rank in range(hosts)]
        kept.write_text(json.dumps(busy_ms(ranks)))
    return interval(json.loads(kept.read_text()))


def busy_ms(ranks: Sequence[Sequence[tuple[list[int], list[int]]]]) -> list[float]:
    """Of each step: from the last rank's launch of a bucket, or the end of the one before, to the last rank's end.

    Hosts are namespaces of one machine and share its clock.
    """
    busy = []
    for step in zip(*ranks, strict=True):
        end = total = 0
        for bucket in range(len(step[0][0])):
            begin = max(launched[bucket] for launched, _ in step)
            done = max(ended[bucket] for _, ended in step)
            total += done - max(begin, end)
            end = done
        busy.append(total / 1e6)
    return busy


def interval(each_ms: Sequence[float]) -> Busy:
    """Mean of steps; its interval is that of the means of BATCH steps each, since neighbouring steps depend."""
    means = [statistics.fmean(each_ms[i : i + BATCH]) for i in range(0, len(each_ms), BATCH)]
    return Busy(
        mean_ms=statistics.fmean(means), half_ms=T_95 * statistics.stdev(means) / math.sqrt(len(means))
    )
