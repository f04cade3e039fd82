"""Changes to a run's files as an accident makes them: digits, lines, fields, files and folders.

Each change is drawn from a seed, and says in words what it did. Half of the changes to rank files happen "before
encoding": the checksums are then made anew, as if the rank had measured so.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import rank_files

from scaling.records.paths import RunFolder

Change = Callable[[RunFolder, random.Random], str]


def digit(folder: RunFolder, rng: random.Random) -> str:
    """One digit of one file, as it lies there."""
    path = rng.choice(_files(folder))
    content = bytearray(path.read_bytes())
    at = rng.choice([k for k, byte in enumerate(content) if 48 <= byte <= 57])
    content[at] = rng.choice([d for d in range(48, 58) if d != content[at]])
    path.write_bytes(bytes(content))
    return f"digit at byte {at} of {path.name}"


def digit_before(folder: RunFolder, rng: random.Random) -> str:
    """One digit of one number of a rank file, before its checksum was made."""
    path = _rank(folder, rng)
    said = ""

    def change(lines: list[dict[str, Any]]) -> None:
        nonlocal said
        line = rng.choice(lines)
        places = list(_numbers(line))
        if places:
            holder, key, value = rng.choice(places)
            text = list(str(value))
            k = rng.choice([k for k, c in enumerate(text) if c.isdigit()])
            text[k] = rng.choice([d for d in "0123456789" if d != text[k]])
            holder[key] = type(value)("".join(text))
            said = f"{path.name}: {line['t']} of block {line.get('b', line.get('id'))}, {key}: {value} -> {holder[key]}"

    rank_files.change(path, change)
    return said or "nothing"


def lines(folder: RunFolder, rng: random.Random) -> str:
    """Lines of a rank file dropped, doubled or swapped; half of the time before the checksums."""
    path, kind = _rank(folder, rng), rng.choice(["dropped", "doubled", "swapped", "cut"])
    before = rng.random() < 0.5

    def change(found: list[Any]) -> list[Any]:
        k = rng.randrange(1, len(found))
        if kind == "dropped":
            return found[:k] + found[k + rng.choice([1, 1, 3]) :]
        if kind == "doubled":
            return [*found[: k + 1], *found[k:]]
        if kind == "cut":
            return found[:k]
        other = rng.randrange(1, len(found))
        found[k], found[other] = found[other], found[k]
        return found

    if before:
        rank_files.change(path, change)
    else:
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    return f"{path.name}: lines {kind}{' before encoding' if before else ''}"


def block(folder: RunFolder, rng: random.Random) -> str:
    """A whole block dropped on one rank or on all, doubled, or with another block's number, before encoding."""
    kind = rng.choice(["dropped", "dropped on all ranks", "doubled", "renumbered"])
    paths = [folder.launch(0).rank(rank) for rank in folder.launch(0).ranks()]
    number = rng.choice([line["id"] for line in rank_files.read(paths[0]) if line["t"] == "block"])

    def of(line: dict[str, Any]) -> bool:
        return bool(
            (line["t"] == "block" and line["id"] == number) or (line["t"] == "step" and line["b"] == number)
        )

    def change(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if kind == "doubled":
            return [*found[:-2], *(line for line in found if of(line)), *found[-2:]]
        if kind == "renumbered":
            for line in filter(of, found):
                line["id" if line["t"] == "block" else "b"] = number + 1
            return found
        return [line for line in found if not of(line)]

    for path in paths if kind == "dropped on all ranks" else paths[:1]:
        rank_files.change(path, change)
    return f"block {number} {kind}"


def field(folder: RunFolder, rng: random.Random) -> str:
    """A field of a record deleted, or an item of its array, before encoding."""
    path, said = _rank(folder, rng), ""

    def change(found: list[dict[str, Any]]) -> None:
        nonlocal said
        line = rng.choice(found)
        arrays = [value for value in line.values() if isinstance(value, list) and value]
        if arrays and rng.random() < 0.5:
            array = rng.choice(arrays)
            inner = array[0] if isinstance(array[0], list) else array
            del inner[rng.randrange(len(inner))]
            said = f"{path.name}: an item of a {line['t']} deleted"
        else:
            key = rng.choice(list(line))
            del line[key]
            said = f"{path.name}: {key} deleted"

    rank_files.change(path, change)
    return said


def files(folder: RunFolder, rng: random.Random) -> str:
    """Rank files swapped, copied or removed, and launches copied."""
    launch = folder.launch(0)
    one, two = rng.sample(launch.ranks(), 2)
    kind = rng.choice(["swapped", "copied", "removed", "launch copied", "launch copied as if launched"])
    if kind == "swapped":
        content = launch.rank(one).read_bytes()
        launch.rank(one).write_bytes(launch.rank(two).read_bytes())
        launch.rank(two).write_bytes(content)
    elif kind == "copied":
        shutil.copy(launch.rank(one), launch.rank(two))
    elif kind == "removed":
        launch.rank(one).unlink()
    else:
        shutil.copytree(launch.path, folder.launch(1).path)
        if "as if" in kind:
            for rank in folder.launch(1).ranks():
                rank_files.change(folder.launch(1).rank(rank), lambda found: found[0].update(launch=1))
    return f"files {kind}: {one}, {two}"


def document(folder: RunFolder, rng: random.Random) -> str:
    """A value of plan.json or status.json changed, or a key deleted."""
    path = rng.choice([folder.plan, folder.status])
    content = json.loads(path.read_text(encoding="utf-8"))
    places = list(_numbers(content, flags=True))
    holder, key, value = rng.choice(places)
    new = rng.choice([value * 2, value + 1, 0, -1, None, "x"]) if not isinstance(value, bool) else not value
    if rng.random() < 0.2 and isinstance(holder, dict):
        del holder[key]
        new = "deleted"
    else:
        holder[key] = new
    path.write_text(json.dumps(content), encoding="utf-8")
    return f"{path.name}: {key}: {value} -> {new}"


def telemetry(folder: RunFolder, rng: random.Random) -> str:
    """A value of a host's telemetry, where the run has one."""
    found = sorted(folder.launch(0).path.glob("telemetry-*.jsonl"))
    if not found:
        return document(folder, rng)
    path = rng.choice(found)
    content = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    holder, key, value = rng.choice(list(_numbers(rng.choice(content))))
    holder[key] = rng.choice([value * 1000, -value, 0, 2**62])
    path.write_text("".join(json.dumps(line) + "\n" for line in content), encoding="utf-8")
    return f"{path.name}: {key}: {value} -> {holder[key]}"


STRUCTURAL: tuple[Change, ...] = (lines, lines, block, field, field, files, document, telemetry)


def _files(folder: RunFolder) -> list[Path]:
    """What a digit may change in: mostly rank files."""
    launch = folder.launch(0)
    ranks = [launch.rank(rank) for rank in launch.ranks()]
    return [*ranks * 4, folder.plan, folder.status, *sorted(launch.path.glob("telemetry-*.jsonl"))]


def _rank(folder: RunFolder, rng: random.Random) -> Path:
    launch = folder.launch(0)
    return launch.rank(rng.choice(launch.ranks()))


def _numbers(value: Any, *, flags: bool = False) -> Any:
    """(container, key, number) for each number in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in list(items):
        if isinstance(one, bool):
            if flags:
                yield value, key, one
        elif isinstance(one, (int, float)):
            yield value, key, one
        else:
            yield from _numbers(one, flags=flags)
