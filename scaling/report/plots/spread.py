"""The own steps of many ranks as a histogram."""

from __future__ import annotations

import itertools

from scaling.analysis.results import RankSpread
from scaling.report import text
from scaling.report.plots.base import Json, Plot, layout, slug


def spread(found: RankSpread) -> Plot:
    """How many ranks have which own step."""
    edges = found.edges_ms
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    said = [
        f"{text.number(low)} to {text.number(high)} ms: {text.count(many, 'rank')}"
        for low, high, many in zip(edges, edges[1:], found.counts, strict=False)
    ]
    bars: Json = {"type": "bar", "x": middles, "y": [many or None for many in found.counts]}
    bars |= {"width": [edges[1] - edges[0]] * len(middles), "marker": {"color": "$accent"}}
    bars |= {"customdata": said, "hovertemplate": "%{customdata}<extra></extra>"}
    drawn = layout("own step (ms)", "ranks (log scale)")
    drawn["yaxis"] |= {"type": "log", "dtick": 1}
    drawn["bargap"] = 0
    return Plot(
        name=slug("ranks", found.world_size),
        label=f"Own steps of {text.ranks(found.world_size)}: {text.number(found.least_ms)} to "
        f"{text.number(found.most_ms)} ms, median {text.number(found.median_ms)} ms",
        caption="Without DDP, while every rank is at work; the mean of each rank over the rounds.",
        height_px=260,
        data=[bars],
        layout=drawn,
    )
