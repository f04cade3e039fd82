"""How a launch stands when its end was not seen, because the program that followed it was killed or interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from scaling.reading import parse_json, read_tail
from scaling.records.files import read_json, write_json
from scaling.records.launch import read_content
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.run import STATUS_SCHEMA, LaunchStatus, Status, left, status_of
from scaling.settings.plan import Plan

END_LINE_BYTES = 4096
"""A rank file's last line is shorter than this."""


def earlier_launches(folder: RunFolder) -> list[LaunchStatus]:
    """The launches in status.json. One that is still called running gets its state from the files it left."""
    if not folder.status.exists():
        return []
    launches = read_json(folder.status, Status, STATUS_SCHEMA).launches
    return [settled(s, folder.launch(s.index)) if s.state == "running" else s for s in launches]


def next_index(folder: RunFolder, launches: list[LaunchStatus]) -> int:
    """The number of the next launch: higher than all in `launches`, and than all folders where status.json is lost."""
    numbers = [launch.index for launch in launches] + [launch.index for launch in folder.launches()]
    return max(numbers, default=-1) + 1


def settled(started: LaunchStatus, launch: LaunchFolder, *, ended: bool = False) -> LaunchStatus:
    """Which world sizes a launch finished, by its files where `ended` is false. The state is lost until set."""
    too_large = tuple(n for n in started.world_sizes if launch.out_of_memory(n).exists())
    content = read_content(launch)
    left_out = tuple(n for n in started.world_sizes if content is not None and not content.holds(n))
    whole = ended or all(_whole(launch.rank(rank)) for rank in range(max(started.world_sizes)))
    return dataclasses.replace(
        started,
        state="lost",
        finished=tuple(n for n in started.world_sizes if whole and n not in (*too_large, *left_out)),
        too_large=too_large,
        left_out=left_out,
        error="the program that followed it was killed",
    )


def end_between(plan: Plan, folder: RunFolder, launches: list[LaunchStatus], state: str, error: str) -> None:
    """Note an end that came while no launch was followed, as the end of the launch that was being prepared."""
    if not launches or launches[-1].state != "running":
        sizes = left(plan, launches, len(launches))
        launches.append(LaunchStatus(index=next_index(folder, launches), world_sizes=sizes, state="running"))
    else:  # its ranks may have finished before the end came
        launches[-1] = settled(launches[-1], folder.launch(launches[-1].index))
    launches[-1] = dataclasses.replace(launches[-1], state=state, error=error)
    with contextlib.suppress(OSError):
        write_json(folder.status, status_of(plan, launches))


def _whole(path: Path) -> bool:
    """Whether a rank wrote its records to their end."""
    try:
        last = read_tail(path, END_LINE_BYTES).rstrip(b"\n").rpartition(b"\n")[2]
        return bool(parse_json(last).get("t") == "end")
    except (OSError, ValueError, AttributeError):
        return False
