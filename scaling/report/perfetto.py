"""Timelines in Chrome's trace format, which Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from scaling.analysis.results import Timeline


def chrome(timelines: Sequence[Timeline]) -> str:
    """The JSON of a file: a process for each world size, a thread for each rank and lane; times in us."""
    events: list[dict[str, Any]] = []
    for timeline in timelines:
        pid = timeline.world_size
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"world size {pid}"}})
        for span in timeline.spans:
            thread = span.rank * 2 + (span.lane == "link")
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
