"""What a job's output says of its communication: NCCL's own lines (NCCL_DEBUG=INFO) and torch's watchdog.

Lines: src/transport/*.cc and src/misc/*.cc of NCCL, `host:pid:tid [device] NCCL INFO` before each; torch's
ProcessGroupNCCL.cpp, `[rank3]:` before each. A channel has a line at its sender and one at its receiver. A receiver
without GPUDirect RDMA shows in its `[receive]` line alone; senders lack it by default on older GPUs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.analysis.network.nccl_log import LINE_BYTES_MAX, transport
from scaling.errors import InputError
from scaling.reading import LOG_BYTES_MAX, RefusedError, open_file

EXPECTED = "a job's output with lines of NCCL (NCCL_DEBUG=INFO) or of torch's NCCL watchdog is expected"
SHOWN = 12
RANKS_MAX = 1_000_000
_NCCL = re.compile(r"([\w.-]{1,255}):\d{1,10}:\d{1,10} \[-?\d{1,5}\] (?:\S+ )?NCCL (INFO|WARN) (.*\S)")
_VIA = re.compile(
    r"(?:Channel|Ring|Coll(?:Net)?) \d+(?:/\d+)? : \d+\S* (?:->|<-) \d+\S* (?:\[(send|receive)\] )?via (\S+)"
)
_CARD = re.compile(r"NET/[A-Za-z]\w*/(\d{1,4})")
_CARDS = re.compile(r"NET/IB : Using (.*)")
_SET = re.compile(r"(NCCL_\w{1,60}) set (?:by environment )?to (\S{1,60})")
_RANKS = re.compile(r"rank \d+ nranks (\d{1,7})", re.IGNORECASE)
_RANK = re.compile(r"^\s*(?:\S+:\s*)?\[rank(\d{1,6})\]:")
_TIMED_OUT = re.compile(
    r"\[Rank (\d{1,6})\].*Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,12}), OpType=(\w+)"
    r".*?NumelIn=(\d{1,15}).*?Timeout\(ms\)=(\d{1,12})"
)
_STANDS = re.compile(
    r"(?:PG GUID [^()\s]*\((\w+)\) )?Rank (\d{1,6})\].*last enqueued (?:NCCL )?work: (-?\d{1,12}), "
    r"last completed (?:NCCL )?work: (-?\d{1,12})"
)
_TURNED_OFF = {
    "NCCL_P2P_DISABLE": "takes NVLink and PCIe peer access away",
    "NCCL_IB_DISABLE": "takes InfiniBand and RoCE away",
    "NCCL_NVLS_ENABLE": "decides over reduction in NVSwitches",
}
_DIRECT = (
    "load nvidia_peermem (or use dma-buf), and look at NCCL_NET_GDR_LEVEL, ACS and the container's devices"
)


@dataclass(slots=True)
class _Host:
    """How the channels of one host go."""

    sends: Counter[str] = field(default_factory=Counter)
    receives: Counter[str] = field(default_factory=Counter)
    cards_used: set[str] = field(default_factory=set)
    cards: int = 0
    without_direct: bool = False
    """NCCL says of a card that GPUDirect RDMA is disabled."""


@dataclass(slots=True)
class _Log:
    hosts: dict[str, _Host] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    ranks: int = 0
    stands: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By process group and rank: number of the last collective enqueued, and completed."""
    timed_out: dict[int, tuple[int, str, int, int]] = field(default_factory=dict)
    """By rank: number, kind, elements, time-out in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    """What is printed; `findings` name a cause and a remedy."""

    lines: tuple[str, ...]
    findings: tuple[str, ...]
    document: dict[str, Any]


def read_job_logs(paths: Iterable[Path]) -> JobLog:
    """All files of one job together. InputError where no line of NCCL or of its watchdog is in them."""
    log, named = _Log(), []
    for path in paths:
        named.append(str(path))
        try:
            for line in _lines(path):
                _take(log, line)
        except (OSError, RefusedError) as error:
            raise InputError(f"{path}: cannot be read ({error}); {EXPECTED}") from error
    if not (log.hosts or log.warnings or log.stands or log.timed_out):
        raise InputError(f"{', '.join(named[:3])}: no such line in it; {EXPECTED}")
    findings = [*_waiting(log), *_paths(log)]
    hosts = {
        name: {"send": dict(h.sends), "receive": dict(h.receives), "cards": sorted(h.cards_used, key=int)}
        for name, h in sorted(log.hosts.items())
    }
    lines = [f"# host     {name}: {_ways(h)}" for name, h in sorted(log.hosts.items())[:SHOWN]]
    if len(log.hosts) > SHOWN:
        lines.append(f"# host     and {len(log.hosts) - SHOWN} more")
    lines += [f"# finding  {text}" for text in findings]
    lines += [f"# warned   {text}" for text in list(log.warnings)[:3]]
    if not findings:
        lines.append("# finding  none: nothing here differs between hosts or is known to be slow")
    document = {
        "kind": "job_log",
        "hosts": hosts,
        "stands": {
            g: {str(r): {"enqueued": e, "completed": c} for r, (e, c) in s.items()}
            for g, s in log.stands.items()
        },
        "findings": findings,
        "warnings": list(log.warnings)[:SHOWN],
    }
    return JobLog(lines=tuple(lines), findings=tuple(findings), document=document)


def findings_in(lines: Iterable[str]) -> tuple[str, ...]:
    """Ways that are slower than they need to be, of lines of NCCL beside a test's table."""
    log = _Log()
    for line in lines:
        _take(log, line)
    return tuple(_paths(log))


def _lines(path: Path) -> Iterator[str]:
    with open_file(path, LOG_BYTES_MAX) as file:
        while line := file.readline(LINE_BYTES_MAX):
            yield line.decode("utf-8", "replace")


def _take(log: _Log, line: str) -> None:
    prefix = _RANK.match(line)
    if prefix:
        log.ranks = max(log.ranks, int(prefix[1]) + 1)
    if nccl := _NCCL.search(line):
        host = log.hosts.setdefault(nccl[1], _Host())
        if nccl[2] == "WARN":
            log.warnings[nccl[3]] = None
        elif via := _VIA.search(nccl[3]):
            name = transport(via[2])
            (host.receives if via[1] == "receive" else host.sends)[name] += 1
            if card := _CARD.match(via[2]):
                host.cards_used.add(card[1])
        elif cards := _CARDS.search(nccl[3]):
            host.cards = len(re.findall(r"\[\d+\]\w+:\d+/(?:IB|RoCE)", cards[1]))
        elif "GPU Direct RDMA Disabled" in nccl[3]:
            host.without_direct = True
        elif put := _SET.search(nccl[3]):
            log.settings[put[1]] = put[2].rstrip(".")
        elif ranks := _RANKS.search(nccl[3]):
            log.ranks = max(log.ranks, int(ranks[1]))
    elif late := _TIMED_OUT.search(line):
        rank = int(prefix[1] if prefix else late[1])
        log.timed_out.setdefault(rank, (int(late[2]), late[3], int(late[4]), int(late[5])))
    elif stands := _STANDS.search(line):
        rank = int(prefix[1] if prefix else stands[2])
        log.stands.setdefault(stands[1] or "default_pg", {})[rank] = int(stands[3]), int(stands[4])


def _waiting(log: _Log) -> Iterator[str]:
    """Which collective is waited for, who is behind, and who says nothing."""
    if log.timed_out:
        (seq, kind, elements, ms), count = Counter(log.timed_out.values()).most_common(1)[0]
        there = [r for r, found in log.timed_out.items() if found[0] == seq]
        yield f"{count} ranks ({_listed(there)}) waited {ms / 1e3:.6g} s in {kind} {seq} of {elements} elements"
        for r, found in sorted(log.timed_out.items()):
            if found[:3] != (seq, kind, elements):
                yield (
                    f"rank {r} waited in {found[1]} {found[0]} of {found[2]} elements: the ranks did not call the same "
                    "collectives in the same order"
                )
    for group, stands in log.stands.items():
        most, done = max(e for e, _ in stands.values()), max(c for _, c in stands.values())
        behind = sorted(r for r, (e, c) in stands.items() if e < most or c < done)
        for r in behind[:SHOWN]:
            enqueued, completed = stands[r]
            yield (
                f"rank {r} is behind in {group}: it enqueued up to {enqueued} and completed {completed}, others {most} "
                f"and {done}: look at what it did on its host then"
            )
    spoke = {*log.timed_out, *(r for stands in log.stands.values() for r in stands)}
    world = max([log.ranks, *(r + 1 for r in spoke)])
    silent = [r for r in range(min(world, RANKS_MAX)) if r not in spoke] if spoke else []
    if silent:
        yield (
            f"rank {_listed(silent)} of {world} has no line of the watchdog: it did not wait in NCCL. It crashed, "
            "hangs on its host (input, checkpoint, another branch), or its output is missing here"
        )


def _paths(log: _Log) -> Iterator[str]:
    """Ways that are slower than they need to be, and hosts that differ from the others."""
    plain, direct = [], []
    for name, host in sorted(log.hosts.items()):
        net = [t for t in host.receives if t.startswith("NET/") and "Socket" not in t]
        if any(not t.endswith("GDRDMA") for t in net) or (host.without_direct and not net):
            plain.append(name)
        elif net:
            direct.append(name)
    if plain:
        which = f"{_names(plain)}, and not {_names(direct)}," if direct else f"{_names(plain)}"
        yield f"{which} receives over the network without GPUDirect RDMA, through host memory: {_DIRECT}"
    socket = [n for n, h in log.hosts.items() if any("Socket" in t for t in (*h.sends, *h.receives))]
    if socket:
        yield (
            f"{_names(socket)} goes over TCP (NET/Socket): if there are InfiniBand or RoCE cards, look at "
            "NCCL_IB_DISABLE, NCCL_IB_HCA, and whether the container sees /dev/infiniband"
        )
    shm = [n for n, h in log.hosts.items() if "SHM" in h.sends]
    if shm:
        some = " between some of its GPUs" if any("P2P" in t for n in shm for t in log.hosts[n].sends) else ""
        yield (
            f"{_names(shm)} goes through host memory (SHM){some}: where NVLink or a PCIe switch joins them, "
            "peer access is off. Look at NCCL_P2P_DISABLE, ACS, IOMMU, and srun --gpus-per-task, which hides the peers"
        )
    few = [n for n, h in log.hosts.items() if h.cards > 1 and 0 < len(h.cards_used) < h.cards]
    for name in few[:SHOWN]:
        host = log.hosts[name]
        yield (
            f"{name} uses {len(host.cards_used)} of {host.cards} network cards: look at NCCL_IB_HCA, at the number of "
            "GPUs a host, and at `nvidia-smi topo -m`"
        )
    sets = {n: frozenset((*h.sends, *h.receives)) for n, h in log.hosts.items() if h.sends or h.receives}
    usual = Counter(sets.values()).most_common(1)
    if len(sets) > 2 and usual and 2 * usual[0][1] > len(sets):
        odd = sorted(n for n, ways in sets.items() if ways != usual[0][0])
        if odd:
            yield f"{_names(odd)} differs from the other hosts: {_ways(log.hosts[odd[0]])}"
    for key, value in log.settings.items():
        if key in _TURNED_OFF:
            yield f"{key}={value} is set, which {_TURNED_OFF[key]}"


def _ways(host: _Host) -> str:
    send = ", ".join(f"{t} x{n}" for t, n in host.sends.most_common()) or "none shown"
    receive = ", ".join(f"{t} x{n}" for t, n in host.receives.most_common())
    return f"sends {send}" + (f"; receives {receive}" if receive else "")


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + ("" if len(names) <= 3 else f" and {len(names) - 3} more hosts")


def _listed(ranks: Iterable[int]) -> str:
    """`0-1, 3-7`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    said = [str(a) if a == b else f"{a}-{b}" for a, b in parts]
    return ", ".join(said[:SHOWN]) + ("" if len(said) <= SHOWN else " and more")
