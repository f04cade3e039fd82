"""Shared by the benchmarks that compare runs over emulated links: models, and which runs are not judged."""

from __future__ import annotations

import os

from scaling.analysis.results import Analysis, Point

MODELS = {
    "synthetic": ["model=synthetic", "model.param_mb=4", "model.layers=16", "model.compute_ms=60"],
    "mlp": ["model=mlp", "model.width=512"],
    "highmem_cnn": ["model=highmem_cnn"],
}
REAL = ("mlp", "highmem_cnn")
LINK_REACHED = 0.9
CONTENDED = "contended"


def left_out(model: str, analysis: Analysis, point: Point) -> str | None:
    """The reason why a world size of a run is not judged."""
    n = point.world_size
    if model in REAL and n > len(os.sched_getaffinity(0)):
        return "real compute with more ranks than cores"
    level = next(level for level in analysis.fabric.levels if level.world_size == n)
    assert level.busbw_gbit_s is not None
    assert level.nominal_gbit_s is not None
    reached = max(c.busbw_gbit_s.value for c in level.curve) / level.nominal_gbit_s
    if reached < LINK_REACHED:
        return f"the link reaches {reached:.0%} of what it can carry"
    if any(warning.startswith(CONTENDED) for warning in analysis.quality.warnings):
        return "other programs were running"
    return None
