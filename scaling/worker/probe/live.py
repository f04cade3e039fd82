"""Print one line about the last steps on rank 0's standard error every few seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from scaling.records.format import AnyStepRow, StepRow
from scaling.worker.parallel.guard import tell

EVERY_S = 10.0


class Live:
    """Collects steps with phase stamps until a line is due."""

    def __init__(self) -> None:
        self._due = time.monotonic() + EVERY_S
        self._steps: list[StepRow] = []

    def add(self, steps: Sequence[AnyStepRow]) -> None:
        """Add steps; those without phases are skipped."""
        self._steps += [step for step in steps if isinstance(step, StepRow)]

    def say(self, number: int) -> None:
        """Print the line if it is due. `number`: steps so far."""
        if time.monotonic() < self._due or not self._steps:
            return
        tell(summary(number, self._steps))
        self._due = time.monotonic() + EVERY_S
        self._steps = []


def summary(number: int, steps: Sequence[StepRow]) -> str:
    """`scaling: step 1200: 98.1 ms on rank 0; input 1%, forward 20%, ...`, from steps of rank 0."""
    whole = sum(step.end_ns - step.begin_ns for step in steps)
    in_forward = sum(step.buffer_wait_ns + step.forward_wait_ns for step in steps)
    in_backward = sum(
        step.sync_end_ns - step.compute_end_ns + step.earlier_wait_ns + step.backward_wait_ns
        for step in steps
    )
    phases = ("input", "forward", "backward", "optimizer")
    parts = {phase: sum(getattr(step, f"{phase}_ns") for step in steps) for phase in phases}
    host = whole - sum(parts.values())
    parts["forward"] -= in_forward
    parts["backward"] -= in_backward
    parts |= {"communication": in_forward + in_backward, "host": host}
    text = ", ".join(f"{name} {ns / whole:.0%}" for name, ns in parts.items())
    return f"scaling: step {number}: {whole / len(steps) / 1e6:.1f} ms on rank 0; {text}"
