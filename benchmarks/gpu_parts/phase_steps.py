"""The phases of steps, by events and by the device's own record of its work."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

from gpu_parts import phases, rows
from gpu_parts.loops import OneRank
from gpu_parts.rows import Row
from torch.profiler import ProfilerActivity, profile

PROFILED, PROFILED_LEAD_IN = 20, 5
"""Steps under the profiler; the first of them warm the profiler up and do not count."""


def stamped_phases(solo: OneRank, folder: Path) -> list[Row]:
    """Phases of the bare module's step by events and by the device's own record of its work, in the same steps.

    That record is the profiler's trace, or what a simulated device says of its tasks.
    """
    took = _simulated_phases(solo) if solo.kind == "sim" else _profiled_phases(solo, folder)
    by_events, by_record = (phases.means_ms(steps[PROFILED_LEAD_IN:]) for steps in took)
    source = "the simulation" if solo.kind == "sim" else "the profiler"
    return [rows.phase(name, by_events[name], by_record[name], source) for name in by_events]


def _simulated_phases(solo: OneRank) -> tuple[list[Any], list[list[int]]]:
    """Rows of stamps by events, and by the simulation."""
    from scaling_simulator.trace import recorded

    device = copy.copy(solo.device)
    device.clock = clock = phases.NotedClock(solo.device.clock)  # type: ignore[assignment]
    loop = solo.loop(solo.workload.module, device)
    count = PROFILED + PROFILED_LEAD_IN
    with recorded() as tasks, device.clock.window(count * loop.stamps):
        tokens = [loop.stamped() for _ in range(count)]
    borders = phases.borders_of_tasks_ns(clock.noted_ns, [(task.queued_ns, task.end_ns) for task in tasks])
    return [device.clock.resolve(row) for row in tokens], phases.steps_of(borders)


def _profiled_phases(solo: OneRank, folder: Path) -> tuple[list[Any], list[list[int]]]:
    """Rows of stamps by events, and by the profiler."""
    device = copy.copy(solo.device)
    device.clock = phases.MarkedClock(solo.device.clock)  # type: ignore[assignment]
    loop = solo.loop(solo.workload.module, device)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if solo.kind == "cuda" else [])
    count = PROFILED + PROFILED_LEAD_IN
    with profile(activities=activities) as profiled, device.clock.window(count * loop.stamps):
        tokens = [loop.stamped() for _ in range(count)]
        device.synchronize()
    trace = folder / "trace.json.gz"
    profiled.export_chrome_trace(str(trace))
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return [device.clock.resolve(row) for row in tokens], phases.steps_of(phases.borders_ns(events))
