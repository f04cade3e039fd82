"""Which files there are, whose they are, and reading them: one process a core, one file at a time in each."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from scaling.analysis.traced import HtaKernel, HtaRank
from scaling.errors import InputError
from scaling.trace import hta
from scaling.trace.columns import Trace
from scaling.trace.decompose import Parts, decompose
from scaling.trace.pieces import DamagedError
from scaling.trace.read import read_trace

SUFFIXES = (".json", ".json.gz")
SMALL_BYTES = 4 << 20
"""Files that together are smaller are read in this process: starting others takes longer."""
_RANK = re.compile(r"rank[-_ ]?(\d+)|^worker[-_ ]?(\d+)\.", re.IGNORECASE)
"""`worker3.TIME.pt.trace.json` is a name given to tensorboard_trace_handler; `worker-3_PID.` is its host's name."""


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
    started_us: float
    base_ns: int
    """What the file says its times count from; added to `started_us` where clocks are compared."""
    events: int
    absurd: int
    odd: int
    parts: Parts
    hta: tuple[HtaRank, dict[str, int], tuple[HtaKernel, ...]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that gave nothing, and why."""

    path: Path
    why: str
    rank: int | None


def find(paths: Iterable[str]) -> list[Path]:
    """The files of `paths`; of a folder those that end in .json or .json.gz, at any depth. InputError without any."""
    found: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())
            if not inside:
                raise InputError(
                    f"{path}: no trace in this folder; files that end in .json or .json.gz are expected"
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise InputError(
                f"{path}: no such file or folder; a PyTorch profiler trace or a folder of them is expected"
            )
    return list(dict.fromkeys(found))


def read_all(
    paths: list[Path], *, with_hta: bool, meanwhile: Callable[[], object]
) -> tuple[list[RankTrace], list[Problem]]:
    """Read every file; those that cannot be read are problems, and cost the others nothing.

    `meanwhile` is called here where other processes read; by then they are all there.
    """
    jobs = [(path, with_hta) for path in paths]
    workers = min(len(jobs), os.cpu_count() or 1)
    if workers < 2 or sum(p.stat().st_size for p in paths) < SMALL_BYTES:
        results = [_read(job) for job in jobs]
    else:
        from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415  slow to import

        # Fork shares what is imported already; nothing here has threads by now.
        method = "fork" if sys.platform == "linux" else "spawn"
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method)) as pool:
            reading = pool.map(_read, jobs)
            meanwhile()
            results = list(reading)
    return [r for r in results if isinstance(r, RankTrace)], [r for r in results if isinstance(r, Problem)]


def _read(job: tuple[Path, bool]) -> RankTrace | Problem:
    path, with_hta = job
    by_name = _RANK.findall(path.name)
    named = int("".join(by_name[-1])) if by_name else None
    try:
        trace = read_trace(path)
        parts = decompose(trace)
    except DamagedError as error:
        return Problem(path=path, why=str(error), rank=named)
    except ValueError as error:
        return Problem(path=path, why=f"nothing to analyse: {error}", rank=named)
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
        started_us=trace.base_us,
        base_ns=int(meta.base_ns or 0),
        events=trace.events,
        absurd=trace.absurd,
        odd=trace.odd,
        parts=parts,
        hta=hta.breakdown(trace, rank or 0) if with_hta else None,
    )


def _groups(trace: Trace) -> dict[str, tuple[int, ...]]:
    """Members of the process groups that the trace lists."""
    who = trace.meta.distributed
    listed = who.pg_config if who is not None and isinstance(who.pg_config, list) else []
    found = {}
    for group in listed:
        members = group.get("ranks")
        if isinstance(members, list) and members and all(isinstance(r, int) for r in members):
            found[str(group.get("pg_name", ""))] = tuple(members)
    return found
