"""Rank files as a worker would have written them, after something in them was changed on purpose.

Packed steps are shown as a line for each: {"t": "step", "b": block, "i": number, "s": stamps, "c": collectives}.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scaling.records.encoding import Sealer, pack
from scaling.records.files import read_json, write_json
from scaling.records.format import COLLECTIVE_DEFAULTS, COLLECTIVE_FIELDS
from scaling.records.paths import RunFolder
from scaling.records.run import STATUS_SCHEMA, Status

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    """The records of a file, without their seals."""
    found: list[Line] = []
    for text in path.read_text(encoding="ascii").splitlines():
        line = json.loads(text)
        line.pop("crc", None)
        found += _unpacked(line) if line["t"] == "steps" else [line]
    return found


def sealed(lines: list[Line]) -> str:
    """The records as a recorder writes them."""
    sealer, text = Sealer(), []
    for line in _packed(lines):
        written = json.dumps(line, separators=(",", ":")) + "\n"
        text.append(sealer.pass_on(written) if line.get("t") == "steps" else sealer.seal(written))
    return "".join(text)


def write(path: Path, lines: list[Line]) -> None:
    """Write the records as a recorder does."""
    path.write_text(sealed(lines), encoding="ascii")


def change(path: Path, change: Callable[[list[Line]], list[Line] | None]) -> None:
    """Change a file's records as if they had been measured so: seals hold afterwards.

    `change` changes the list in place or returns another.
    """
    lines = read(path)
    write(path, change(lines) or lines)


def _unpacked(line: Line) -> Iterator[Line]:
    count, stamps, calls, width = line["n"], line["s"], line.get("c", 0), line.get("w", 0)
    numbers = np.frombuffer(zlib.decompress(base64.b64decode(line["z"])), dtype="<i8")
    for k, row in enumerate(numbers.reshape(-1, count).cumsum(axis=1).T.tolist()):
        sent = [row[at : at + width] for at in range(stamps, stamps + calls * width, width or 1)]
        step = {"t": "step", "b": line["b"], "i": line["i"] + k, "s": row[:stamps]}
        yield {**step, "c": sent} if calls else step


def _packed(lines: Sequence[Line]) -> Iterator[Line]:
    """The lines with steps that follow each other in one record, where their shapes are the same."""

    def shape(numbered: tuple[int, Line]) -> object:
        at, line = numbered
        if line.get("t") != "step":
            return at
        follows = line.get("i", -1) - at  # the same while their numbers and their places go on together
        return (line.get("b"), follows, len(line.get("s", ())), len(line.get("c", ())))

    for _, same in itertools.groupby(enumerate(lines), shape):
        steps = [line for _, line in same]
        if steps[0].get("t") != "step":
            yield from steps
            continue
        first = steps[0]
        sent = [line.get("c", ()) for line in steps]
        width = max((len(row) for rows in sent for row in rows), default=0)
        table = [
            [*line.get("s", ()), *itertools.chain.from_iterable(_filled(row, width) for row in rows)]
            for line, rows in zip(steps, sent, strict=True)
        ]
        calls = {"c": len(sent[0]), "w": width} if sent[0] else {}
        record = {key: first[key] for key in ("b", "i") if key in first}
        counts = {"n": len(steps), "s": len(first.get("s", ())), **calls}
        yield {"t": "steps", **record, **counts, "z": base64.b64encode(pack(table)).decode()}


def _filled(row: Sequence[int], width: int) -> list[int]:
    """A collective's row with the defaults of what it leaves out."""
    defaults = [0] * (len(COLLECTIVE_FIELDS) - len(COLLECTIVE_DEFAULTS)) + list(COLLECTIVE_DEFAULTS)
    return [*row, *defaults[len(row) : width]]


def launch_again(folder: RunFolder, index: int, of: int = 0) -> None:
    """A second launch with the records of another one, as if it had measured them too."""
    shutil.copytree(folder.launch(of).path, folder.launch(index).path)
    for rank in folder.launch(index).ranks():
        change(folder.launch(index).rank(rank), lambda lines: lines[0].update(launch=index))
    if folder.status.exists():
        status = read_json(folder.status, Status, STATUS_SCHEMA)
        same = next(one for one in status.launches if one.index == of)
        launches = (*status.launches, dataclasses.replace(same, index=index))
        write_json(folder.status, dataclasses.replace(status, launches=launches))
