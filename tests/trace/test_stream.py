"""A file is read whole or refused with a reason, however it is laid out and wherever it is cut."""

import gzip
import json

import pytest

from scaling.trace import stream
from scaling.trace.stream import DamagedError, TraceStream

EVENTS = [
    {
        "ph": "X",
        "cat": "kernel",
        "name": f'k<{{lambda()#1}}, {{lambda()#2}}> "{k}"',
        "ts": k + 0.125,
        "dur": 2,
    }
    | {
        "args": {
            "stream": 7,
            "Input Dims": [[1, {"a": 1}], [{"b": 2}, {"c": 3}]],
            "nested": [{"x": 1}, {"y": 2}],
        }
    }
    for k in range(2000)
]
META = {"distributedInfo": {"rank": 3, "world_size": 8}, "deviceProperties": [{"id": 0}, {"id": 1}]}


def read(path):
    found = TraceStream(path)
    return [event for batch in found for event in batch], found


LAYOUTS = {
    "pretty": json.dumps({**META, "traceEvents": EVENTS}, indent=2),
    "compact": json.dumps({**META, "traceEvents": EVENTS}, separators=(",", ":")),
    "keys after the events": json.dumps({"traceEvents": EVENTS, **META}),
    "tabs and newlines": json.dumps({**META, "traceEvents": EVENTS}, indent="\t"),
}


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("piece", [300, 4096, 1 << 18])
def test_every_event_is_read_in_order_whatever_the_layout(tmp_path, monkeypatch, text, packed, piece):
    monkeypatch.setattr(stream, "PIECE", piece)
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    events, found = read(path)
    assert [e.name for e in events] == [e["name"] for e in EVENTS]
    assert [e.ts for e in events] == [e["ts"] for e in EVENTS]
    assert found.meta.distributed.rank == 3
    assert len(found.meta.devices) == 2


def test_a_bare_list_of_events_is_a_trace_too(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(EVENTS))
    assert len(read(path)[0]) == len(EVENTS)


def test_a_gzip_of_several_members_is_one_file(tmp_path):
    text, path = LAYOUTS["pretty"].encode(), tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:5000]) + gzip.compress(text[5000:]))
    assert len(read(path)[0]) == len(EVENTS)


def test_what_json_does_not_allow_but_profilers_write_costs_no_other_event(tmp_path):
    path = tmp_path / "trace.json"
    text = (
        '{"traceEvents": [{"ph": "X", "name": "inf in a name", "ts": 1, "dur": 2, "args": {"bandwidth": inf}},\n'
        '{"ph": "X", "name": "b", "ts": 3, "dur": NaN}, {"ph": "X", "name": "c", "ts": "noon", "dur": 1},\n'
        '{"ph": "X", "name": "d\\u00e9 \xff", "ts": 4, "dur": 1}]}'
    )
    path.write_bytes(text.encode("latin-1"))
    events, found = read(path)
    assert [e.name for e in events][:2] == ["inf in a name", "b"]
    assert (len(events), found.odd) == (3, 1)


TROUBLE = {
    "empty": (b"", "it is empty"),
    "no JSON": (b"hello", "it is not JSON"),
    "other JSON": (b'{"a": 1}', 'no "traceEvents"'),
    "cut plain": (LAYOUTS["pretty"].encode()[:-20000], "in the middle of its events"),
    "cut gzip": (gzip.compress(LAYOUTS["pretty"].encode())[:-500], "cut off"),
    "broken gzip": (b"\x1f\x8b" + b"\0" * 50, "gzip stream is damaged"),
    "unclosed": (b'{"traceEvents": [', "not closed"),
    "broken events": (b'{"traceEvents": [{"ph": "X", "ts": }]}', "not JSON"),
}


@pytest.mark.parametrize(("content", "why"), TROUBLE.values(), ids=TROUBLE)
def test_a_damaged_file_says_how(tmp_path, content, why):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=why):
        read(path)
