"""timeline.json, as Perfetto opens it."""

from __future__ import annotations

import json

import pytest

from scaling.report.figures import chrome


def test_chromes_format_has_a_process_a_world_size_and_two_threads_a_rank(sample):
    drawn = sample.timeline(2)
    events = json.loads(chrome((drawn,)))["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"world size 2"}
    threads = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert set(threads) == {f"rank {r} {lane}" for r in (0, 1) for lane in ("compute", "link")}
    assert len(set(threads.values())) == 4
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(drawn.spans)
    forward = next(e for e in complete if (e["name"], e["tid"]) == ("forward", threads["rank 0 compute"]))
    span = next(s for s in drawn.spans if (s.rank, s.name) == (0, "forward"))
    assert forward["ts"] == pytest.approx(span.begin_ms * 1e3, abs=0.1)
    assert forward["dur"] == pytest.approx((span.end_ms - span.begin_ms) * 1e3, abs=0.1)
