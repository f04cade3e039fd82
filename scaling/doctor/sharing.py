"""Ranks that share a device, and gradients that go through host memory: said with every number that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.doctor.differences import ranks_text


def labels(facts: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """A line each. `facts`: what every rank wrote down of itself (env-<r>.json, flat)."""
    backends = {own.get("backend") for own in facts.values() if own.get("device") == "cuda"}
    by_device: dict[tuple[Any, Any], list[int]] = {}
    for rank, own in sorted(facts.items()):
        if own.get("device") == "cuda" and own.get("device_uuid"):
            by_device.setdefault((own.get("host"), own["device_uuid"]), []).append(rank)
    shared = [ranks for ranks in by_device.values() if len(ranks) > 1]
    said = [
        f"{ranks_text(ranks)} share one device: each has a part of its time, so this is no {len(ranks)} devices' "
        "efficiency"
        for ranks in shared
    ]
    if "gloo" in backends and len(facts) > 1:
        said.append(
            "host-staged: Gloo carries the gradients through host memory, so bandwidth and latency are not those of a "
            "link between devices"
        )
    if "nccl" in backends and shared:
        said.append("NCCL joins ranks of one device (NCCL_MULTI_RANK_GPU_ENABLE), over no link at all")
    return tuple(said)
