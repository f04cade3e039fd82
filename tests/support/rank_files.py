"""Rank files as a worker would have written them, after something in them was changed on purpose."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaling.records.files import read_json, write_json
from scaling.records.paths import RunFolder
from scaling.records.seal import KEY, Sealer
from scaling.records.status import SCHEMA, Status

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    """The records of a file, without their seals."""
    found = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    for line in found:
        line.pop("crc", None)
    return found


def sealed(lines: list[Line]) -> str:
    """The records as a recorder writes them."""
    sealer, text = Sealer(), []
    for line in lines:
        written = json.dumps(line, separators=(",", ":")) + "\n"
        text.append(sealer.pass_on(written) if line.get("t") in ("step", "steps") else sealer.seal(written))
    return "".join(text)


def has_seals(path: Path) -> bool:
    """Whether the file's first line has one."""
    with path.open("rb") as file:
        return KEY in file.readline()


def change(path: Path, change: Callable[[list[Line]], list[Line] | None]) -> None:
    """Change a file's records as if they had been measured so: seals, where there were any, hold afterwards.

    `change` changes the list in place or returns another.
    """
    seals, lines = has_seals(path), read(path)
    lines = change(lines) or lines
    plain = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_text(sealed(lines) if seals else plain, encoding="ascii")


def seal_run(folder: RunFolder) -> None:
    """Give every rank file of a run its seals and its end line, as workers do."""
    for launch in folder.launches():
        for rank in launch.ranks():
            lines = read(launch.rank(rank))
            blocks = sum(line["t"] == "block" for line in lines)
            if lines[-1]["t"] != "end":
                lines.append({"t": "end", "state": "done", "blocks": blocks})
            launch.rank(rank).write_text(sealed(lines), encoding="ascii")


def launch_again(folder: RunFolder, index: int, of: int = 0) -> None:
    """A second launch with the records of another one, as if it had measured them too."""
    shutil.copytree(folder.launch(of).path, folder.launch(index).path)
    for rank in folder.launch(index).ranks():
        change(folder.launch(index).rank(rank), lambda lines: lines[0].update(launch=index))
    if folder.status.exists():
        status = read_json(folder.status, Status, SCHEMA)
        same = next(one for one in status.launches if one.index == of)
        launches = (*status.launches, dataclasses.replace(same, index=index))
        write_json(folder.status, dataclasses.replace(status, launches=launches))
