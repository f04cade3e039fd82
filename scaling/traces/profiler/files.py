"""Read the trace files: a process a core, one file at a time in each."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.reading import as_number
from scaling.settings.plan import RANKS_MAX
from scaling.traces.profiler.columns import Trace
from scaling.traces.profiler.decompose import Parts, decompose
from scaling.traces.profiler.read import read_trace
from scaling.traces.profiler.stream import DamagedError

SMALL_BYTES = 4 << 20
"""Smaller sets of files are read in this process, since starting others would take longer."""
_RANK = re.compile(r"rank[-_ ]?(\d+)|^worker[-_ ]?(\d+)\.", re.IGNORECASE)
"""`worker3.TIME.pt.trace.json` is named by the user of tensorboard_trace_handler; `worker-3_PID.` by its host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What is kept of one rank's file."""

    path: Path
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    device_name: str | None
    groups: dict[str, tuple[int, ...]]
    described: dict[str, str]
    """What a process group is for, as torch describes it: `default_pg`, `mesh_shard`."""
    started_us: float
    base_ns: int
    """The file's own time base; added to `started_us` to compare clocks."""
    events: int
    absurd: int
    odd: int
    no_workers: bool
    parts: Parts
    unseen: bool
    """It used a device, and no event of the device is in the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadFile:
    """A file that could not be used, and why."""

    path: Path
    why: str
    rank: int | None


def read_all(
    paths: list[Path], meanwhile: Callable[[], object] = lambda: None
) -> tuple[list[RankTrace], list[UnreadFile]]:
    """Read every file; also those that could not be read, which do not affect the others.

    Where other processes read, `meanwhile` is called here after all of them have started.
    """
    workers = min(len(paths), os.cpu_count() or 1)
    if workers < 2 or sum(p.stat().st_size for p in paths) < SMALL_BYTES:
        results = [_read(path) for path in paths]
    else:
        from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415  slow to import

        # Fork shares the imported modules. It is safe: this process has no threads yet.
        method = "fork" if sys.platform == "linux" else "spawn"
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method)) as pool:
            reading = pool.map(_read, paths)
            meanwhile()
            results = list(reading)
    return [r for r in results if isinstance(r, RankTrace)], [r for r in results if isinstance(r, UnreadFile)]


def _read(path: Path) -> RankTrace | UnreadFile:
    by_name = _RANK.findall(path.name)
    named = as_number("".join(by_name[-1])) if by_name else None
    try:
        trace = read_trace(path)
        _require_ranks(trace, named)
        parts = decompose(trace)
    except DamagedError as error:
        return UnreadFile(path=path, why=str(error), rank=named)
    except ValueError as error:
        return UnreadFile(path=path, why=f"nothing to analyse: {error}", rank=named)
    meta, who = trace.meta, trace.meta.distributed
    rank = who.rank if who is not None and who.rank is not None else named
    devices = meta.devices or []
    return RankTrace(
        path=path,
        rank=rank,
        world_size=who.world_size if who is not None else None,
        backend=who.backend if who is not None else None,
        host=meta.host_name,
        device_name=str(devices[0].get("name")) if devices else None,
        groups=_groups(trace),
        described=_described(trace),
        started_us=trace.base_us,
        base_ns=int(meta.base_ns or 0),
        events=trace.events,
        absurd=trace.absurd,
        odd=trace.odd,
        no_workers=trace.no_workers,
        parts=parts,
        unseen=parts.device == "cpu" and (trace.enqueues or (who is not None and who.backend == "nccl")),
    )


def _require_ranks(trace: Trace, named: int | None) -> None:
    """DamagedError where the rank or the number of ranks cannot be: the others would be looked for."""
    who = trace.meta.distributed
    rank = who.rank if who is not None and who.rank is not None else named
    for what, value, least in (("rank", rank, 0), ("world_size", who.world_size if who else None, 1)):
        if value is not None and not least <= value <= RANKS_MAX:
            raise DamagedError(f"its {what} is {value}; {least} to {RANKS_MAX} is expected")


def _listed(trace: Trace) -> list[dict[str, Any]]:
    who = trace.meta.distributed
    return who.pg_config if who is not None and isinstance(who.pg_config, list) else []


def _described(trace: Trace) -> dict[str, str]:
    found = {str(group.get("pg_name", "")): group.get("pg_desc") for group in _listed(trace)}
    return {
        name: said for name, said in found.items() if isinstance(said, str) and said not in ("", "undefined")
    }


def _groups(trace: Trace) -> dict[str, tuple[int, ...]]:
    """Members of the process groups that the trace lists."""
    found = {}
    for group in _listed(trace):
        members = group.get("ranks")
        if isinstance(members, list) and members and all(isinstance(r, int) for r in members):
            found[str(group.get("pg_name", ""))] = tuple(members)
    return found
