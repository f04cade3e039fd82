"""A file is read whole or refused with a reason, however it is laid out and wherever it is cut."""

import gzip
import json
import zlib

import pytest

from scaling.traces.profiler import stream
from scaling.traces.profiler.stream import DamagedError, TraceEvent, TraceStream

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
    return [event for batch in found for event in batch if isinstance(event, TraceEvent)], found


@pytest.fixture(params=["isal", "zlib"])
def _unpacked_by(request, monkeypatch):
    """isal where it is built for the processor, else the standard library."""
    if request.param == "zlib":
        monkeypatch.setattr(stream, "Gzip", gzip.GzipFile)
        monkeypatch.setattr(stream, "GzipError", zlib.error)


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


@pytest.mark.usefixtures("_unpacked_by")
def test_a_gzip_of_several_members_is_one_file(tmp_path):
    text, path = LAYOUTS["pretty"].encode(), tmp_path / "trace.json.gz"
    # padded, as on tapes
    path.write_bytes(gzip.compress(text[:5000]) + gzip.compress(text[5000:]) + b"\0" * 512)
    assert len(read(path)[0]) == len(EVENTS)


def test_blanks_between_events_are_no_event(tmp_path):
    path = tmp_path / "trace.json"
    first, second = map(json.dumps, EVENTS[:2])
    path.write_text(f"[{first},{' ' * (5 << 20)}{second}]")
    assert len(read(path)[0]) == 2


def test_what_does_not_last_is_counted_and_read_over(tmp_path):
    path = tmp_path / "trace.json"
    others = [{"ph": phase, "ts": "noon", "args": {"name": phase}} for phase in "MsfiBEC"]
    odd = [{"ts": 1, "dur": 2}, {"ph": "?"}]  # neither is in the format
    for found in (others, others + odd):
        path.write_text(json.dumps([EVENTS[0], *found, EVENTS[1]]))
        events, trace = read(path)
        assert [e.ts for e in events] == [0.125, 1.125]
        assert (trace.events, trace.odd) == (len(found) + 2, 0)


def test_what_an_event_says_of_itself_is_decoded_when_it_is_asked_for(tmp_path):
    said = [{"stream": 7, "correlation": 3}, {"stream": [7]}, None, {"stream": None, "dtype": "Half"}]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": str(k), "args": args} for k, args in enumerate(said)]))
    events, trace = read(path)
    assert (trace.events, trace.odd) == (4, 0)
    kept, args = trace.said(events)
    assert [e.name for e in kept] == ["0", "2", "3"]
    assert [(a.stream, a.correlation, a.dtype) for a in args] == [
        (7, 3, None),
        (None, None, None),
        (None, None, "Half"),
    ]
    assert (trace.events, trace.odd) == (3, 1)


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
    "cut in the gzip header": (gzip.compress(b"")[:6], "cut off"),
    "cut before the checksum": (gzip.compress(b"[]")[:-8], "cut off"),
    "no gzip": (b"\x1f\x8b" + b"\0" * 50, "gzip stream is damaged"),
    "another checksum": (gzip.compress(b"[{}]")[:-8] + b"\1" * 8, "gzip stream is damaged"),
    "no deflate": (gzip.compress(b"")[:10] + b"\xff" * 50, "gzip stream is damaged"),
    "something behind it": (gzip.compress(b"[]") + b"something behind it", "gzip stream is damaged"),
    "unclosed": (b'{"traceEvents": [', "not closed"),
    "broken events": (b'{"traceEvents": [{"ph": "X", "ts": }]}', "not JSON"),
}


@pytest.mark.usefixtures("_unpacked_by")
@pytest.mark.parametrize(("content", "why"), TROUBLE.values(), ids=TROUBLE)
def test_a_damaged_file_says_how(tmp_path, content, why):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=why):
        read(path)


# Hostile

LONG = b'{"traceEvents": [{"ph": "X", "name": "' + b"},{" * 3_000_000 + b'", "ts": 1, "dur": 1}]}'
EVENT = b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1'
NESTED = b"[" * 5000 + b"]" * 5000
HOSTILE = {
    "a string of 9 MB": (LONG, "one event is longer than 4 MiB"),
    "the same in gzip": (gzip.compress(LONG), "one event is longer than 4 MiB"),
    "events nested 5,000 deep": (
        EVENT + b', "args": {"x": ' + NESTED + b"}}]}",
        "its events are nested without end",
    ),
    "a head without end": (b'{"a": "' + b"x" * (65 << 20), "what precedes the events is longer than 64 MiB"),
    "the same in 70 kB": (gzip.compress(b" " * (65 << 20)), "what precedes the events is longer than 64 MiB"),
    "a tail without end": (
        b'{"traceEvents": [], "a": "' + b"x" * (65 << 20),
        "what follows the events is longer than 64 MiB",
    ),
}


@pytest.mark.parametrize(("content", "why"), HOSTILE.values(), ids=HOSTILE)
def test_what_would_take_all_memory_or_time_is_refused(tmp_path, content, why):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=why):
        read(path)


def test_keys_nested_without_end_beside_the_events_cost_no_event(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(EVENT + b'}], "z": ' + NESTED + b"}")
    assert [event.name for event in read(path)[0]] == ["a"]


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "UNPACKED_MAX", 1 << 20)
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(b"[" + b'{"ph": "M"},' * 200_000 + b'{"ph": "M"}]'))
    with pytest.raises(DamagedError, match="it unpacks to more than 200 times its size"):
        read(path)
