"""Runs of the ground truth, and what all of its parts read from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import harness

TCP_SHARE = 1448 / 1514
"""Of a link's rate, what TCP over Ethernet has for its payload."""
TRIES = 3
CLOSES = 0.03
"""A step that is put together from its parts may be so far off, or as far as two equal blocks differ."""


def measure(folder: Path, arguments: list[str]) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Last level and point of a run that is not contended, and how many contended runs came before."""
    for contended in range(TRIES):
        document = measured(
            folder if not contended else folder.with_name(f"{folder.name}-{contended}"), arguments
        )
        if not any(warning.startswith("contended") for warning in document["quality"]["warnings"]):
            break
    else:
        contended = TRIES
    return document["fabric"]["levels"][-1], document["points"][-1], contended


def measured(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """A run's analysis. A folder that already holds a whole run is only analysed again; one that was cut off goes."""
    if _whole(folder):
        return harness.analyze(folder)
    if folder.exists():
        shutil.rmtree(folder)
    return harness.measure(folder, *arguments)


def _whole(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "status.json").read_text(encoding="utf-8"))["state"] == "done")
    except (OSError, ValueError):
        return False


def repeated(contended: int) -> str:
    """How often a run was repeated; with `!` where the last one was contended too."""
    return f"{TRIES - 1}!" if contended == TRIES else str(contended)


def floor_of(point: dict[str, Any]) -> float:
    """How far two blocks of the same arm differ at most, by their interval."""
    same = point["overhead"]["aa_floor"]
    return max(abs(x - 1) for x in (same[k] for k in ("value", "low", "high")) if x)


def beyond(value: float, floor: float) -> float:
    """What is left of an error beyond the greater of CLOSES and the floor."""
    return max(0.0, abs(value) - max(CLOSES, floor))


def holds(measured: dict[str, Any], truth: float) -> bool:
    """Whether an interval contains the truth."""
    return measured["low"] is not None and bool(measured["low"] <= truth <= measured["high"])
