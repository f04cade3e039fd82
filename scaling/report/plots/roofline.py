"""The roofline plot (Williams, Waterman, Patterson 2009): what the ceilings allow, and where the step is."""

from __future__ import annotations

from scaling.analysis.results import CeilingResult, RooflineResult
from scaling.plain import plain
from scaling.report.plots.base import Json, Plot, layout, line, whiskers
from scaling.units import format_bytes

COPY = "copy"


def roofline(found: RooflineResult) -> Plot | None:
    """Rate over arithmetic intensity: a slope for the memory and one for the caches, a roof for the peak."""
    copies = sorted((c for c in found.ceilings if c.name == COPY), key=lambda c: c.size)
    if not copies or found.peak is None or not found.bytes:
        return None
    peak = found.peak.best.value
    own = found.flops / found.bytes
    dots = [(o.flops / o.bytes, o) for o in found.top if o.flops and o.bytes]
    slopes = {c.size: c for c in (max(copies, key=lambda c: c.best.value), copies[-1])}
    knees = [peak / c.best.value for c in slopes.values()]
    low = min([own, *(x for x, _ in dots), *knees]) / 4
    high = max([own, *(x for x, _ in dots), *knees]) * 4
    data = [_roof(c, peak, low, high, index) for index, c in enumerate(slopes.values())]
    at_best = [o.flops / (o.least_ms.value / 1e3) for _, o in dots]
    marks: Json = {"type": "scatter", "mode": "markers", "x": [x for x, _ in dots], "y": at_best}
    marks |= {
        "name": "operators, at their best",
        "text": [plain(f"{o.name} {o.layer}") for _, o in dots],
    }
    marks |= {"marker": {"size": 9, "symbol": "circle-open", "color": "$second"}}
    data.append(marks | {"hovertemplate": "%{text}<extra></extra>"})
    step: Json = {"type": "scatter", "mode": "markers", "x": [own], "y": [found.achieved_flop_s.value]}
    step |= {"name": "the step, measured", "marker": {"size": 13, "symbol": "diamond", "color": "$loss"}}
    step |= {"error_y": whiskers([found.achieved_flop_s], "$loss")}
    data.append(step | {"hovertemplate": f"{found.achieved_flop_s.value / 1e9:.4g} GFLOP/s<extra></extra>"})
    drawn = layout("FLOP per byte read or written (log scale)", "FLOP/s (log scale)")
    drawn["xaxis"] |= {"type": "log"}
    drawn["yaxis"] |= {"type": "log", "exponentformat": "SI"}
    drawn["showlegend"] = True
    caption = (
        f"Lines are the ceilings of {found.device}, the roof is {found.peak_is}; circles are operators at the least "
        "time these allow, the diamond is the whole step as measured."
    )
    label = f"Roofline: {found.said}"
    return Plot(name="roofline", label=label, caption=plain(caption), height_px=360, data=data, layout=drawn)


def _roof(copy: CeilingResult, peak: float, low: float, high: float, index: int) -> Json:
    knee = peak / copy.best.value
    roof = line(
        [low, knee, high], [low * copy.best.value, peak, peak], "$accent", ("solid", "dash")[index % 2]
    )
    return roof | {
        "name": f"{format_bytes(copy.size)} copies, {copy.best.value / 1e9:.3g} GB/s",
        "hoverinfo": "skip",
    }
