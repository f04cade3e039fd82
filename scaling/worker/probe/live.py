"""What a running loop tells of its last steps on rank 0: a line on standard error now and then, figures in a log."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from scaling.records.format import RecordedBlock, StepRow
from scaling.worker.parallel.guard import tell

EVERY_S = 10.0


class Live:
    """Collects steps with phase stamps until a line is due."""

    def __init__(self) -> None:
        self._due = time.monotonic() + EVERY_S
        self._steps: list[StepRow] = []

    def add(self, recorded: RecordedBlock) -> None:
        """Add the steps of a block; those without phases are skipped."""
        self._steps += _with_phases(recorded)

    def between(self, _slot: int, number: int) -> None:
        """Print the line if it is due. `number`: steps so far."""
        if time.monotonic() < self._due or not self._steps:
            return
        tell(summary(number, self._steps))
        self._due = time.monotonic() + EVERY_S
        self._steps = []


def summary(number: int, steps: Sequence[StepRow]) -> str:
    """`scaling: step 1200: 98.1 ms on rank 0; input 1%, forward 20%, ...`, from steps of rank 0."""
    whole = sum(step.end_ns - step.begin_ns for step in steps)
    each = [parts_of(step) for step in steps]
    text = ", ".join(f"{name} {sum(parts[name] for parts in each) / whole:.0%}" for name in each[0])
    return f"scaling: step {number}: {whole / len(steps) / 1e6:.1f} ms on rank 0; {text}"


def parts_of(step: StepRow) -> dict[str, int]:
    """What a step spends its time on, ns: its phases without their waits, all waits, and the rest of the host's."""
    behind = step.sync_end_ns - step.compute_end_ns + step.earlier_wait_ns
    waited = {
        "input": step.input_wait_ns,
        "forward": step.forward_wait_ns + step.buffer_wait_ns,
        "backward": step.backward_wait_ns + behind,
        "optimizer": step.optimizer_wait_ns,
    }
    parts = {phase: getattr(step, f"{phase}_ns") - ns for phase, ns in waited.items()}
    parts["communication"] = sum(waited.values()) + step.host_wait_ns
    return parts | {"host": step.end_ns - step.begin_ns - sum(parts.values())}


Log = Any
"""Takes figures by name, as `wandb.log` does, or has `add_scalar`, as a SummaryWriter has."""
ROUNDS = 4
"""Rounds of steps between two logs."""
LATE = 0.03
"""A rank is called late in a log if it takes longer than the median of all by more than this share of the step."""


class Logged:
    """Gives `log` the figures of the last steps, on rank 0. Other ranks tell theirs over the store; nobody waits."""

    def __init__(self, log: Log, store: Any, rank: int, world: int) -> None:
        self._log, self._store, self._rank, self._world = log, store, rank, world
        self._steps: list[StepRow] = []
        self._told: list[tuple[int, dict[str, float]]] = []
        """The slot of figures that rank 0 has yet to log, and they."""

    def add(self, recorded: RecordedBlock) -> None:
        """Add the steps of a block without details."""
        if not recorded.block.detailed:
            self._steps += _with_phases(recorded)

    def between(self, slot: int, number: int) -> None:
        """Tell and log between two rounds. `number`: steps so far."""
        if slot % ROUNDS or not self._steps:
            return
        steps, self._steps = self._steps, []
        step_ms = _mean_ms(steps, lambda s: s.end_ns - s.begin_ns)
        exposed_ms = _mean_ms(steps, lambda s: parts_of(s)["communication"])
        self._store.set(_key(slot, self._rank), str(step_ms - exposed_ms))
        if self._rank:
            return
        for earlier, figures in self._told:
            self._write(figures | self._lateness(earlier, figures["scaling/step_ms"]), number)
        figures = {"scaling/step_ms": step_ms, "scaling/exposed_ms": exposed_ms}
        figures["scaling/input_ms"] = _mean_ms(steps, lambda s: parts_of(s)["input"])
        tokens = sum(s.tokens for s in steps)
        if all(s.tokens >= 0 for s in steps):
            figures["scaling/tokens_per_s"] = self._world * tokens / (len(steps) * step_ms) * 1e3
        self._told = [(slot, figures)]

    def _lateness(self, slot: int, step_ms: float) -> dict[str, float]:
        """The late rank, or -1, and by how much; nothing where a rank has not told its time yet."""
        keys = [_key(slot, rank) for rank in range(self._world)]
        if self._world < 2 or not self._store.check(keys):
            return {}
        computed = [float(self._store.get(key)) for key in keys]
        for key in keys:
            self._store.delete_key(key)
        late_ms = max(computed) - statistics.median_low(computed)
        late = late_ms > LATE * step_ms
        return {
            "scaling/late_rank": computed.index(max(computed)) if late else -1,
            "scaling/late_ms": late_ms if late else 0.0,
        }

    def _write(self, figures: dict[str, float], number: int) -> None:
        if hasattr(self._log, "add_scalar"):
            for name, value in figures.items():
                self._log.add_scalar(name, value, number)
        else:
            self._log(figures)


def _with_phases(recorded: RecordedBlock) -> list[StepRow]:
    return [step for step in recorded.steps if isinstance(step, StepRow)]


def _key(slot: int, rank: int) -> str:
    return f"logged/{slot}/{rank}"


def _mean_ms(steps: Sequence[StepRow], value: Callable[[StepRow], int]) -> float:
    return sum(map(value, steps)) / len(steps) / 1e6
