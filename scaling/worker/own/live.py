"""One line about the last steps, on rank 0's standard error, now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

EVERY_S = 10.0


class Live:
    """Gathers steps with phase stamps until a line is due."""

    def __init__(self) -> None:
        self._due = time.monotonic() + EVERY_S
        self._steps: list[Sequence[int]] = []

    def add(self, steps: Sequence[Sequence[int]]) -> None:
        """records.STEP_FIELDS rows; plain steps' two stamps are passed over."""
        self._steps += [step for step in steps if len(step) > 2]

    def say(self, number: int) -> None:
        """Print the line when it is due. `number`: steps so far."""
        if time.monotonic() < self._due or not self._steps:
            return
        print(summary(number, self._steps), file=sys.stderr, flush=True)
        self._due = time.monotonic() + EVERY_S
        self._steps = []


def summary(number: int, steps: Sequence[Sequence[int]]) -> str:
    """`scaling: step 1200: 98.1 ms; input 1 %, forward 20 %, ...` of the steps given (rank 0's own)."""
    whole = sum(step[1] - step[0] for step in steps)
    waits = sum(step[7] - step[6] for step in steps)
    sums = [sum(step[i] for step in steps) for i in range(2, 6)]
    names = ("input", "forward", "backward", "optimizer")
    parts = dict(zip(names, sums, strict=True))
    parts["backward"] -= waits
    parts = {**parts, "communication": waits, "host": whole - sum(sums)}
    text = ", ".join(f"{name} {ns / whole:.0%}" for name, ns in parts.items())
    return f"scaling: step {number}: {whole / len(steps) / 1e6:.1f} ms on rank 0; {text}"
