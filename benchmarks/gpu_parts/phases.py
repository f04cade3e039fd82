"""The phases of a step by torch.profiler, at the places where the harness takes its stamps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from scaling.traces.profiler.signs import ANNOTATIONS, COPIES, KERNELS, RUNTIME
from scaling.worker.measure.step import STAMPS_A_MICRO_STEP, step_row

MARK = "scaling stamp"
"""Name of the profiler's range around a stamp."""
ORDER = (0, 1, 2, 3, 8, 4, 5, 6, 7)
"""Order in which the tokens of a stamped step are taken; the end of backward's compute comes behind them in the row."""
PHASES = ("input", "forward", "backward", "optimizer")
LOST_SHARE = 0.01
"""Limit on the device work without a launch in the trace. With more, phases cannot be separated."""


class MarkedClock:
    """A clock whose stamps also appear in the profiler's trace."""

    def __init__(self, clock: Any) -> None:
        import torch

        self._clock, self._range = clock, torch.autograd.profiler.record_function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def stamp(self) -> int:
        """Convert as the clock does."""
        with self._range(MARK):
            return self._clock.stamp()  # type: ignore[no-any-return]


class NotedClock:
    """A clock that notes when the host took each stamp, for a device that the profiler does not know."""

    def __init__(self, clock: Any) -> None:
        self._clock, self.noted_ns = clock, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def stamp(self) -> int:
        """Convert as the clock does."""
        from scaling.worker.accelerator.clock import now_ns

        self.noted_ns.append(now_ns())
        return self._clock.stamp()  # type: ignore[no-any-return]


def borders_ns(events: Iterable[Mapping[str, Any]]) -> list[int]:
    """When each mark was reached on the device, from the events of a Chrome trace (times in us), in order.

    On one stream, an event is reached when all work launched before it has ended, and not before the event itself is
    recorded. A mark's time is its cudaEventRecord if the trace has it, else the middle of its range. On a CPU there is
    no device work. ValueError where launches are missing.
    """
    marks: list[tuple[float, float]] = []
    recorded: list[float] = []
    launched: dict[int, float] = {}
    work: list[tuple[int, float]] = []
    for event in events:
        if event.get("ph") != "X":
            continue
        category, begin, took = event.get("cat"), float(event["ts"]), float(event.get("dur", 0))
        number = event.get("args", {}).get("correlation")
        if event.get("name") == MARK and category in ANNOTATIONS:
            marks.append((begin, begin + took))
        elif category in RUNTIME and str(event.get("name")).startswith("cudaEventRecord"):
            recorded.append(begin + took / 2)
        elif category in RUNTIME and number is not None:
            launched[number] = begin
        elif category in KERNELS | COPIES and number is not None:
            work.append((number, begin + took))
    work_launched = sorted((launched[number], end) for number, end in work if number in launched)
    if len(work) - len(work_launched) > LOST_SHARE * len(work):
        raise ValueError(
            f"the trace has no launch of {len(work) - len(work_launched)} of {len(work)} pieces of device work"
        )
    recorded.sort()
    places = []
    for low, high in sorted(marks):
        at = bisect_left(recorded, low)
        places.append(recorded[at] if at < len(recorded) and recorded[at] <= high else (low + high) / 2)
    return [round(reached * 1000) for reached in _reached(places, work_launched)]


def borders_of_tasks_ns(noted_ns: Sequence[int], tasks: Iterable[tuple[int, int]]) -> list[int]:
    """When each noted stamp was reached on a simulated device, from (queued, end) of its tasks on one stream.

    The host spends a launch's time before it queues a task, so one that was queued at a stamp's time came before it.
    """
    return [round(reached) for reached in _reached(noted_ns, sorted(tasks))]


def _reached(marks: Sequence[float], work: Sequence[tuple[float, float]]) -> list[float]:
    """When a stream that does its work in order reaches each mark; `work` is (launched, end), sorted."""
    begun = [begin for begin, _ in work]
    ended = list(accumulate((end for _, end in work), max))
    reached = []
    for mark in marks:
        before = bisect_right(begun, mark)
        reached.append(max(mark, ended[before - 1]) if before else mark)
    return reached


def steps_of(borders: Sequence[int]) -> list[list[int]]:
    """One row for each step, like a stamped step's. ValueError where marks are missing."""
    if len(borders) % len(ORDER):
        raise ValueError(f"{len(borders)} marks, {len(ORDER)} a step are expected")
    rows = []
    for at in range(0, len(borders), len(ORDER)):
        row = [0] * (STAMPS_A_MICRO_STEP + 4)
        for place, border in zip(ORDER, borders[at : at + len(ORDER)], strict=True):
            row[place] = border
        rows.append(row)
    return rows


def means_ms(rows: Sequence[Sequence[int]]) -> dict[str, float]:
    """Mean of each phase and of the whole step, ms, from rows of stamps in ns."""
    fields = [step_row(row) for row in rows]
    means = {name: sum(f[2 + i] for f in fields) / len(fields) / 1e6 for i, name in enumerate(PHASES)}
    return means | {"step": sum(f[1] - f[0] for f in fields) / len(fields) / 1e6}
