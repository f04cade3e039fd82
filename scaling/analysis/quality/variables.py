"""Environment variables with which events on a GPU's streams no longer time what they are taken to time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.spec.environment import VARIABLE
from scaling.spec.topology import GPU

_SERIAL = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "all streams share one hardware queue, where an event or a collective can wait "
    "behind kernels of another stream; waits and transfers may be partly such waits, and overlap less than without it",
    "CUDA_LAUNCH_BLOCKING": "the host waits for each kernel, so nothing overlaps; unset it to measure",
}
"""Variables that have the value 1, and what that does (CUDA programming guide, environment variables)."""


def warnings(facts: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """A warning for each such variable that is set on ranks with a CUDA device; `facts` by rank."""
    said = []
    for name, effect in _SERIAL.items():
        fact = f"{VARIABLE}{name}"
        ranks = [
            rank for rank, known in facts.items() if known.get(fact) == "1" and known.get("device") == GPU
        ]
        if ranks:
            where = "" if len(ranks) == len(facts) else f" on rank {', '.join(map(str, sorted(ranks)))}"
            said.append(f"{name}=1{where}: {effect}")
    return tuple(said)
