"""A run's efficiency beside that of published trainings, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.results import Analysis, OthersKept, at
from scaling.report.text import percent, ranks

DIFFER = "their machines, models and software differ from this run's: how common a figure is, not whether it is right"


def reference_table(analysis: Analysis, found: Sequence[OthersKept]) -> Iterator[str]:
    """A table for each world size, the lowest efficiency first."""
    if not found:
        known = [p for p in analysis.points if p.efficiency is not None and p.world_size > p.base_world_size]
        sizes = ", ".join(f"{p.world_size} over {p.base_world_size}" for p in known)
        yield (
            f"# nothing was published at {sizes} ranks in {analysis.run.mode} scaling"
            if known
            else "# the run has no efficiency beyond its base, so there is nothing to set beside others"
        )
        return
    if not analysis.run.device_name and analysis.run.device == "cpu":
        yield "# this run was made on CPUs; the others used GPUs"
    for one in found:
        point = at(one.world_size, analysis.points)
        own = percent(point.efficiency) if point is not None and point.efficiency is not None else "unknown"
        yield f"# {ranks(one.world_size)}, {one.mode} scaling over {one.base_world_size}: this run keeps {own}"
        yield f"#{'kept':>7}  {'device':>9}  {'strategy':<20} {'model':<22} source"
        for o in one.others:
            yield (
                f" {100 * o.efficiency:>5.1f} %  {o.device:>9}  {o.strategy[:20]:<20} {o.model[:22]:<22} {o.source} "
                f"({o.licence})"
            )
        differs = [name for name in ("strategy", "device") if name not in one.alike]
        if differs:
            yield f"# none of the same {' and '.join(differs)} was published at this size"
        if one.terms:
            yield f"# {one.terms}"
    yield f"# {DIFFER}"
