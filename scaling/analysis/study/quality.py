"""What a study's intervals cover, what its runs do not have in common, and how good their records are. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.results import Point, Quality, Study
from scaling.analysis.results.run import CONTENDED
from scaling.analysis.study.size import Size
from scaling.units import UNKNOWN, ranks, two_digits

LAUNCHES_DIFFER = "another launch of the same script can be up to a fifth slower or faster"


def warnings(sizes: Sequence[Size], found: Study) -> tuple[str, ...]:
    """What the intervals cover, and what the runs do not have in common."""
    lines = []
    if found.covers == "within":
        lines.append(
            "one launch at each world size: the intervals cover what differs within these launches, and not what "
            f"differs from launch to launch ({LAUNCHES_DIFFER}); repeat the launches in turns"
        )
    elif any(len(size.launch_ns) == 1 for size in sizes):
        alone = ", ".join(str(size.world_size) for size in sizes if len(size.launch_ns) == 1)
        lines.append(f"one launch at world size {alone}: its spread is taken from the other world sizes")
    if not all(size.batch for size in sizes):
        lines.append(
            "the samples of a step were not seen at every world size, so a rank's batch is taken to be the same (weak "
            "scaling); Probe(batch=...) says it"
        )
    steps = {size.plan.spec.accumulation_steps for size in sizes}
    if len(steps) > 1:
        lines.append(
            f"micro-steps in a step differ between world sizes: {', '.join(map(str, sorted(steps)))}"
        )
    if found.base_world_size > 1:
        lines.append(
            f"no run at world size 1, so efficiency and speedup are relative to {found.base_world_size} ranks, and the "
            "loss is not split by cause"
        )
    return tuple(lines)


def quality(sizes: Sequence[Size], found: Study, points: Sequence[Point], first: Sequence[str]) -> Quality:
    """The runs' qualities together."""
    each = [(size.world_size, size.analysis.quality) for size in sizes]
    bounds = [one.clock_bound_us for _, one in each if one.clock_bound_us is not None]
    device = [one.device_clock_bound_us for _, one in each if one.device_clock_bound_us is not None]
    reached = []
    if found.launch_spread is not None:
        reached.append(
            f"launches of one world size differ by {found.launch_spread:.1%} (standard deviation, pooled over world "
            f"sizes, {found.degrees} degrees of freedom); the intervals of steps and efficiencies cover that"
        )
    last = points[-1].efficiency
    if last is not None and last.half_width is not None:
        known = f"known to ±{two_digits(100 * last.half_width)} points"
        unknown = f"{UNKNOWN}: its steps or launches were too few or too uneven"
        reached.append(f"efficiency at {points[-1].world_size} ranks is {known if last.tells else unknown}")
    return Quality(
        contended_blocks=sum(one.contended_blocks for _, one in each),
        dropped_samples=sum(one.dropped_samples for _, one in each),
        dropped_blocks=sum(one.dropped_blocks for _, one in each),
        clock_bound_us=max(bounds, default=None),
        device_clock_bound_us=max(device, default=None),
        reached=tuple(reached),
        warnings=(
            *first,
            *(_at(n, line) for n, one in each for line in one.warnings),
        ),
    )


def _at(n: int, line: str) -> str:
    """A run's warning with its world size; one about contention still begins so."""
    where = f"at {ranks(n)}"
    if line.startswith(CONTENDED):
        return f"{CONTENDED}{where}, {line.removeprefix(CONTENDED)}"
    return f"{where}: {line}"
