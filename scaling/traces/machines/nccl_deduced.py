"""What a log of nccl-tests shows without saying it: its collective, its ranks and its hosts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scaling.traces.machines.nccl_section import FACTORS, Row, Section
from scaling.traces.profiler.signs import element_bytes

_IN_NAME = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv", re.IGNORECASE
)
NODES = re.compile(r"(?<![0-9])([1-9]\d{0,4})[_ -]?(?:nodes?|hosts?)(?![a-z])", re.IGNORECASE)
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
}
LARGE_BYTES = 1 << 20
"""Rows from this size on show the factor of their collective; smaller ones have too few digits."""
ONE_HOST_MAX = 8
"""So many ranks are taken for one host where nothing tells how many hosts there were."""
_LAUNCHERS = re.compile(r"\b(srun|SBATCH|salloc|mpirun|mpiexec|mpiexec\.hydra|orterun|prterun)\b")
_PROCESSES = {"mpi": ("-np", "-n", "-c", "--np"), "slurm": ("-n", "--ntasks")}
_PER_HOST = {
    "mpi": ("-N", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost"),
    "slurm": ("--ntasks-per-node", "--tasks-per-node"),
}
_HOSTS = {"mpi": (), "slurm": ("-N", "--nodes")}


def launched(line: str) -> dict[str, int]:
    """What a command tells, as fields of Launch: processes, hosts, processes on each, ranks in each."""
    launcher, test = _LAUNCHERS.search(line), re.search(r"\S*_perf(?:_mpi)?(?=\s|$)", line)
    if launcher is None and test is None:
        return {}
    found: dict[str, int] = {}
    if launcher is not None:
        kind = "slurm" if launcher[1] in ("srun", "SBATCH", "salloc") else "mpi"
        words = _options(line[launcher.end() : test.start() if test else len(line)])
        found |= _first(words, "processes", _PROCESSES[kind])
        found |= _first(words, "per_host", _PER_HOST[kind]) | _first(words, "hosts", _HOSTS[kind])
        mapped = re.search(r"ppr:(\d{1,4}):node", line)
        if mapped:
            found["per_host"] = int(mapped[1])
        listed = next((words[k] for k in ("-H", "-host", "--host", "-hosts", "--hosts") if k in words), "")
        if kind == "mpi" and listed:
            slots = [int(s) if (s := part.partition(":")[2]).isdigit() else 1 for part in listed.split(",")]
            found.setdefault("processes", sum(slots))
            # mpirun fills a host's slots before it goes to the next one.
            used = next((k for k in range(1, len(slots)) if sum(slots[:k]) >= found["processes"]), len(slots))
            found.setdefault("hosts", used)
    if test is not None:
        words = _options(line[test.end() :])
        each = [_first(words, "n", names).get("n", 1) for names in (("-g", "--ngpus"), ("-t", "--nthreads"))]
        found["ranks_per_process"] = each[0] * each[1]
        found["alone"] = int(launcher is None)
    return found


def _options(text: str) -> dict[str, str]:
    """Options and their values, also those that are joined by `=` or, after one letter, by nothing (`-N2`)."""
    words = re.sub(r"(--[\w-]+)=", r"\1 ", text).split()
    words = [part for w in words for part in (re.findall(r"^(-[A-Za-z])(\d+)$", w) or [(w,)])[0]]
    return {w: v for w, v in zip(words, [*words[1:], ""], strict=False) if w.startswith("-")}


def _first(words: dict[str, str], field: str, names: Sequence[str]) -> dict[str, int]:
    value = next((words[name] for name in names if name in words), "")
    return {field: int(value)} if re.fullmatch(r"[1-9]\d{0,6}", value) else {}


def complete(section: Section, where: str) -> None:
    """Find the collective, the world size and the hosts from all that the section and the file's name tell."""
    name = Path(where).name
    _ranks_told(section)
    _collective(section, name)
    bounds = _bounds(section.rows, FACTORS[section.collective]) if section.collective in FACTORS else None
    n = section.world_size
    if section.one_rank:
        section.world_size, section.world_from = 1, "busbw 0.00, or rank 0 more than once"
    elif bounds is not None and (n is None or not bounds[0] <= n <= bounds[1]):
        section.world_size, section.world_from = _ranks(bounds, section.launch.ranks_per_process or 1)
        if n is not None:
            section.world_from += (
                f"; {section.told_by} {'show' if 'lines' in section.told_by else 'shows'} {n}, "
            )
            section.world_from += "which contradicts it"
    section.hosts, section.hosts_from = _hosts(section, name)


def _ranks_told(section: Section) -> None:
    """The world size from what says it, the surest first."""
    launch = section.launch
    counts = {_in_count(r) for r in section.rows if r.bytes >= LARGE_BYTES} or {None}
    counted = counts.pop() if len(counts) == 1 else None
    each, listed = launch.ranks_per_process or 1, {d.rank for d in section.devices}
    told: list[tuple[int | None, str]] = [(counted if counted and counted > 1 else None, "its count column")]
    if listed:  # the middle of a long list is often left out, and -J lists a process by its first device
        whole = max(len(listed), (max(listed) // each + 1) * each)
        told.append((whole, "its device lines"))
    told.append((launch.nccl_ranks, "NCCL's log"))
    if launch.all_processes is not None:
        told.append((launch.all_processes * each, "its command"))
    elif launch.alone and each > 1:
        told.append((each, "its command, taken for the only process"))
    section.world_size, section.world_from = next(((n, how) for n, how in told if n is not None), (None, ""))
    section.told_by = section.world_from


def _in_count(row: Row) -> int | None:
    """How many times the count column goes into the size: the ranks, for collectives that count a rank's part."""
    size = element_bytes(row.dtype)
    return (
        None
        if size is None or not row.count or row.bytes % (row.count * size)
        else row.bytes // (row.count * size)
    )


def _collective(section: Section, name: str) -> None:
    """By its command, else by the file's name or the shape of its rows, where these leave one."""
    if section.collective is not None:
        return
    possible, named = _possible(section), _IN_NAME.search(name)
    from_name = _COLLECTIVES[re.sub("_", "", named[0].lower())] if named else None
    if from_name in possible:
        section.collective, section.how = from_name, "the file's name"
    elif len(possible) == 1:
        section.collective, section.how = *possible, "its redop, root, count and busbw / algbw"


def _possible(section: Section) -> set[str]:
    """Collectives that print such rows: by what they reduce, their root, their count, and busbw / algbw."""
    first = section.rows[0]
    ratios = [
        r.busbw_gb_s / r.algbw_gb_s for r in section.rows if r.bytes >= LARGE_BYTES and r.algbw_gb_s >= 0.2
    ]
    ratio, n = float(np.median(ratios)) if ratios else None, section.world_size
    if ratio is not None and ratio > 1.01 and first.redop != "none":
        return {"all_reduce"}  # 2 (n-1)/n is above 1 only for it
    parts = any((_in_count(r) or 1) > 1 for r in section.rows if r.bytes >= LARGE_BYTES)
    rooted = first.root is not None and first.root >= 0
    if rooted:
        whole = (
            {"broadcast"} if first.redop == "none" else {"broadcast", "reduce"}
        )  # older ones print `sum` for both
        return {"gather", "scatter"} if parts else whole
    if parts:
        return {"all_gather", "all_to_all"} if first.redop == "none" else {"reduce_scatter", "all_to_all"}
    if first.redop == "none":
        return {"all_gather", "all_to_all", "send_recv", "broadcast"}
    if n is not None and n > 1 and ratio is not None and abs(ratio - 2 * (n - 1) / n) < 0.01:
        return {"all_reduce"}
    return {*FACTORS, "send_recv", "broadcast", "reduce"}


def _bounds(rows: Sequence[Row], factor: float) -> tuple[int, int] | None:
    """World sizes that busbw / algbw = factor (n-1)/n allows, as far as their digits let it be known."""
    low, high = 0.0, 1.0
    for r in rows:
        if r.bytes < LARGE_BYTES or r.busbw_gb_s < 10 * r.rounded_gb_s or r.time_us <= 0:
            continue
        algbw = r.bytes / r.time_us / 1e3  # with more digits than are printed
        if abs(algbw - r.algbw_gb_s) > 2 * r.rounded_gb_s + 0.002 * algbw:
            continue
        low = max(low, (r.busbw_gb_s - r.rounded_gb_s) / (algbw * 1.0005) / factor)
        high = min(high, (r.busbw_gb_s + r.rounded_gb_s) / (algbw * 0.9995) / factor)
    if not 0.4 < low < high < 0.99999:
        return None
    return math.ceil(1 / (1 - low) - 1e-9), math.floor(1 / (1 - high) + 1e-9)


def _ranks(bounds: tuple[int, int], multiple: int) -> tuple[int | None, str]:
    """The world size within the bounds that is the only one, the only multiple of a process's, or the power of two."""
    least, most = bounds
    if least == most:
        return least, "busbw / algbw"
    rounded = f"busbw / algbw, which are rounded: {least} to {most}"
    whole = [n for n in range(max(least, 2), most + 1) if n % multiple == 0] if most < 10**6 else []
    if multiple > 1 and len(whole) == 1:
        return whole[0], f"{rounded}, of which one is a multiple of {multiple} ranks a process"
    powers = [n for n in whole if n & (n - 1) == 0]
    if len(powers) == 1:
        return powers[0], f"{rounded}, of which one is a power of two"
    return None, rounded


def _hosts(section: Section, name: str) -> tuple[int | None, str]:
    """Number of hosts; None where nothing tells it, or where it does not divide the ranks."""
    n, launch = section.world_size, section.launch
    in_name = NODES.search(name)
    listed = {d.rank: d for d in section.devices}
    seen = len({d.host for d in listed.values()})
    whole = n is not None and 0 < n <= len(listed) * (launch.ranks_per_process or 1)
    told: list[tuple[int | None, str]] = [
        (seen if whole else None, "its device lines"),
        (launch.nccl_hosts, "NCCL's log"),
        (launch.all_hosts, "its command"),
        (section.label_hosts, "the line above it"),
        (int(in_name[1]) if in_name else None, "the file's name"),
    ]
    last = listed[max(listed)] if listed else None
    if last is not None and last.device > 0 and n == last.rank + 1:
        told.append((n // (last.device + 1), f"rank {last.rank} is device {last.device} of its host"))
    elif n is not None and n <= ONE_HOST_MAX and not section.crosses_hosts and seen < 2:
        alone = launch.alone and section.told_by.startswith("its command")
        told.append((1, "its command" if alone else "assumed: the log lists no devices"))
    hosts, how = next(((h, how) for h, how in told if h is not None), (None, ""))
    if hosts is None or n is None or n % hosts or hosts < seen:
        return None, ""
    return hosts, how
