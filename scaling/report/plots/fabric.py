"""Bus bandwidth against message size: measured, fitted, nominal, and where the model's buckets lie."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.analysis.results import FabricLevel
from scaling.report import findings, text
from scaling.report.plots.base import SYMBOLS, Json, Plot, layout, line, safe, slug, whiskers
from scaling.units import format_bytes


def fabric(level: FabricLevel, bucket_bytes: Iterable[int]) -> Plot | None:
    """Bus bandwidth against message size: measured, fitted, nominal, and where the model's buckets lie."""
    curve = [c for c in level.curve if c.bytes > 0 and c.busbw_gbit_s.tells]
    if not curve:
        return None
    data = []
    for index, collective in enumerate(dict.fromkeys(c.collective for c in curve)):
        found = [c for c in curve if c.collective == collective]
        busbw = [c.busbw_gbit_s for c in found]
        trace = line([c.bytes for c in found], [m.value for m in busbw], "$accent", "solid")
        trace |= {
            "mode": "markers",
            "name": f"{safe(collective)} measured",
            "error_y": whiskers(busbw, "$accent"),
        }
        trace |= {"marker": {"size": 8, "symbol": SYMBOLS[index % len(SYMBOLS)], "color": "$accent"}}
        said = [f"{format_bytes(c.bytes)}: {text.quantity(c.busbw_gbit_s, 'Gbit/s')}" for c in found]
        data.append(trace | {"text": said, "hovertemplate": "%{text}<extra></extra>"})
    sizes = [c.bytes for c in curve]
    buckets = sorted(set(bucket_bytes))
    low, high = min([*sizes, *buckets]), max([*sizes, *buckets])
    data += _fit(level, low, high)
    if level.nominal_gbit_s is not None:
        nominal = line([low, high], [level.nominal_gbit_s] * 2, "$muted", "dot")
        data.append(nominal | {"name": "nominal link", "hoverinfo": "skip"})
    if buckets:
        rug = {
            "type": "scatter",
            "mode": "markers",
            "x": buckets,
            "y": [0] * len(buckets),
            "cliponaxis": False,
        }
        rug |= {"name": "the model's buckets", "text": [format_bytes(b) for b in buckets]}
        rug |= {"marker": {"symbol": "triangle-up", "size": 11, "color": "$loss"}}
        data.append(rug | {"hovertemplate": "bucket of %{text}<extra></extra>"})
    drawn = layout("message size (bytes, log scale)", "busbw (Gbit/s)")
    ticks = [1 << k for k in range(0, 41, 2 if high / low < 2**12 else 4) if low <= 1 << k <= high]
    drawn["xaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": [format_bytes(t) for t in ticks]}
    drawn["yaxis"]["rangemode"] = "tozero"
    drawn["showlegend"] = True
    fitted = " The dashed line is the fit, time = 2(n-1)(alpha + m beta / n)." if level.alpha_us else ""
    rugged = " Triangles mark the sizes of the model's gradient buckets." if buckets else ""
    caption = f"{text.sentence(findings.level_figures(level))}{fitted}{rugged}"
    return Plot(
        name=slug("fabric", level.name, level.world_size),
        label=findings.level_line(level),
        caption=caption,
        height_px=360,
        data=data,
        layout=drawn,
    )


def _fit(level: FabricLevel, low: int, high: int) -> list[Json]:
    """The fit drawn as bus bandwidth: m / (n alpha + m beta)."""
    if level.alpha_us is None or level.busbw_gbit_s is None or level.busbw_gbit_s.value <= 0:
        return []
    sizes = [low * (high / low) ** (k / 60) for k in range(61)]
    alpha_s = level.alpha_us.value * 1e-6
    beta_s = 8e-9 / level.busbw_gbit_s.value
    busbw = [8e-9 * m / (level.world_size * alpha_s + m * beta_s) for m in sizes]
    return [line(sizes, busbw, "$second", "dash") | {"name": "alpha-beta fit", "hoverinfo": "skip"}]
