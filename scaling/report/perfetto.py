"""Timelines in Chrome's trace format, which Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from scaling.analysis.results import Timeline
from scaling.spec.simulation import Task


def chrome(timelines: Sequence[Timeline]) -> str:
    """The JSON of a file: a process for each world size, a thread for each rank and lane; times in us."""
    events: list[dict[str, Any]] = []
    for timeline in timelines:
        pid = timeline.world_size
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"world size {pid}"}})
        lanes = list(dict.fromkeys(span.lane for span in timeline.spans))
        for span in timeline.spans:
            thread = span.rank * max(2, len(lanes)) + lanes.index(span.lane)
            label = {"name": f"rank {span.rank} {span.lane}"}
            events.append({"ph": "M", "pid": pid, "tid": thread, "name": "thread_name", "args": label})
            event = {
                "ph": "X",
                "pid": pid,
                "tid": thread,
                "name": span.name,
                "ts": round(span.begin_ms * 1e3, 1),
                "dur": round((span.end_ms - span.begin_ms) * 1e3, 1),
            }
            events.append(event if span.bytes is None else {**event, "args": {"bytes": span.bytes}})
    unique = {json.dumps(e, sort_keys=True): e for e in events}
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": list(unique.values())})


def simulated_chrome(tasks: Sequence[Task], topology: str, world_size: int) -> str:
    """A simulated step of one rank: a thread for each stream of the device; waits for peers are events of their own."""
    events: list[dict[str, Any]] = []
    name = f"SIMULATED: one rank of {world_size} on {topology}"
    events.append({"ph": "M", "pid": 0, "name": "process_name", "args": {"name": name}})
    for stream in sorted({task.stream for task in tasks}):
        label = {"name": f"stream {stream}"}
        events.append({"ph": "M", "pid": 0, "tid": stream, "name": "thread_name", "args": label})
    for task in tasks:
        met = task.met_ns or task.start_ns
        for what, begin, end in ((f"wait {task.name}", task.start_ns, met), (task.name, met, task.end_ns)):
            if end > begin:
                times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
                place = {"pid": 0, "tid": task.stream, "args": {"bytes": task.bytes}}
                events.append({"ph": "X", "name": what, **times, **place})
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})
