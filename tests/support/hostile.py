"""Files as an enemy would write them: changes to good ones, and what a command may do with them."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scaling.cli.main import main
from scaling.plain import plain

LONGEST_CPU_S = 20
HUNG_S = 300
"""A command that waits, for a pipe say, takes no processor time; beside other tests a good one waits for its turn."""
MOST_BYTES = 1 << 30

VALUES: tuple[Any, ...] = (
    *(None, True, "", "x", "²", "\x1b[2J\u202e\ud800", [], {}, [[]], {"": {}}, -1, 0, 1, 0.5, -0.0, 1e308),
    *(2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, "9" * 40, "1e999", "NaN"),
)
DEEP = "@@deep@@"
"""Stands for a list nested 5,000 deep, which Python itself could not write."""
BYTES = (
    b"\0",
    b"\xff",
    b"\xe2\x80\xae",
    b"\x1b[2J",
    b"[" * 3000,
    b"{",
    b'"',
    b"]",
    b"9" * 30,
    b"1e999",
    b"NaN",
    b"\n",
)


class LateError(BaseException):
    """A command took too long. No handler of ordinary errors takes it."""


def spoil_json(text: str, rng: random.Random) -> bytes:
    """One or a few values, keys or items of a document changed, dropped, doubled or exchanged."""
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(document))
        if not places:
            break
        parent, key = rng.choice(places)
        match rng.randrange(6):
            case 0 if isinstance(parent, dict):
                del parent[key]
            case 1:
                parent[key] = copy.deepcopy(rng.choice(places)[0])
            case 2 if isinstance(parent, dict):
                parent[rng.choice(("²", "\x1b[2J", "zz", "10000000000"))] = parent[key]
            case 3 if isinstance(parent, list):
                parent += parent[: rng.randrange(1, 4)]
            case 4:
                parent[key] = DEEP
            case _:
                parent[key] = rng.choice(VALUES)
    return json.dumps(document).replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def spoil_lines(text: str, rng: random.Random) -> bytes:
    """A file of a document a line: some of them changed, dropped, doubled or moved."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines.insert(rng.randrange(len(lines)), lines[at])
            case 1 if len(lines) > 1:
                del lines[at]
            case _:
                with contextlib.suppress(ValueError, RecursionError):
                    lines[at] = spoil_json(lines[at], rng).decode()
    return "\n".join([*lines, ""]).encode("utf-8", "replace")


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, dropped, inserted, repeated or cut off."""
    for _ in range(rng.choice((1, 2, 8))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 4, 100))
        match rng.randrange(5):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + data[at : at + length] * rng.choice((2, 50)) + data[at:]
            case 2:
                data = data[:at] + data[at + length :]
            case 3:
                data = data[:at] + rng.choice(BYTES) + data[at:]
            case _:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data


def spoiled(data: bytes, rng: random.Random) -> bytes:
    """One change to a file, by what it holds."""
    if rng.random() < 0.35:
        return spoil_bytes(data, rng)
    if data[:2] == b"\x1f\x8b":
        return gzip.compress(spoiled(gzip.decompress(data), rng), 1)
    text = data.decode()
    if not text.lstrip().startswith(("{", "[")):
        return spoil_bytes(data, rng)
    try:
        json.loads(text)
    except ValueError:
        return spoil_lines(text, rng)
    return spoil_json(text, rng)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fail what takes too long or too much memory."""

    def late(*_: Any) -> None:
        raise LateError(f"not done after {LONGEST_CPU_S} s of processor time, or {HUNG_S} s")

    before = {number: signal.signal(number, late) for number in (signal.SIGALRM, signal.SIGPROF)}
    Path("/proc/self/clear_refs").write_text("5")  # the largest memory so far counts from here
    held = _bytes("VmRSS")
    signal.alarm(HUNG_S)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_CPU_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    took = _bytes("VmHWM") - held
    assert took < MOST_BYTES, f"took {took >> 20} MiB"


def _bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


def assert_refused_or_done(*arguments: str) -> tuple[int, str]:
    """Run a command in this process, within bounds: it ends in order, and prints nothing that acts on a terminal.

    Returns the exit status and all that was printed. An exception is the test's failure, with its traceback.
    """
    out, err = io.StringIO(), io.StringIO()
    with bounded(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    printed = out.getvalue() + err.getvalue()
    assert code in (0, 1, 2, 3), printed
    assert plain(printed) == printed
    if code == 2:
        assert not out.getvalue()
        assert err.getvalue().count("\n") == 1, err.getvalue()
    return code, printed
