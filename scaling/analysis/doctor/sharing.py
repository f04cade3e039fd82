"""Labels for runs whose ranks share a device, or whose gradients go through host memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.analysis.doctor.differences import ranks_text
from scaling.spec.topology import CPU


def by_device(facts: Mapping[int, Mapping[str, Any]]) -> list[list[int]]:
    """The ranks of each device that tells its UUID; `facts`: as of `labels`."""
    found: dict[tuple[Any, Any], list[int]] = {}
    for rank, own in sorted(facts.items()):
        if own.get("device") not in (None, CPU) and own.get("device_uuid"):
            found.setdefault((own.get("host"), own["device_uuid"]), []).append(rank)
    return list(found.values())


def labels(facts: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """One line for each label. `facts`: by rank, the flat content of env-<r>.json."""
    backends = {own.get("backend") for own in facts.values() if own.get("device") not in (None, CPU)}
    shared = [ranks for ranks in by_device(facts) if len(ranks) > 1]
    said = [
        f"{ranks_text(ranks)} share one device and its time, so this is not the efficiency of {len(ranks)} "
        "devices"
        for ranks in shared
    ]
    if "gloo" in backends and len(facts) > 1:
        said.append(
            "host-staged: Gloo carries the gradients through host memory, so bandwidth and latency are not those of a "
            "link between devices"
        )
    if "nccl" in backends and shared:
        said.append(
            "NCCL joins ranks of one device (NCCL_MULTI_RANK_GPU_ENABLE), so its traffic crosses no link"
        )
    return tuple(said)
