"""Read NCCL's log (NCCL_DEBUG=INFO): transports, in-network reduction, and algorithm and protocol by message size.

Lines as NCCL 2.18 to 2.31 print them (src/init.cc, src/transport/*.cc, src/enqueue.cc), `host:pid:tid [device] NCCL
INFO` before each. At the start and once:

    ncclCommInitRankConfig comm 0x... rank 0 nranks 8 cudaDev 0 ... - Init START
    Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM            SHM/direct/direct, [send] via NET/IB/0/GDRDMA
    CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA
    NVLS comm 0x... headRank 0 nHeads 8 ...

and of every collective, on rank 0, with the subsystem TUNING alone:

    AllReduce: 67108864 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}

A channel's line does not name its communicator. It belongs to the last one with several ranks that its process began.

Compare the path that NCCL took with the one that the topology promises. Pure.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from scaling.analysis.results import Fabric, NcclChoice, NcclGroup, NcclLog
from scaling.reading import LOG_BYTES_MAX, RefusedError, open_file
from scaling.settings.run import Spec

NVLS, SHARP = "NVLS", "SHARP"
WARNINGS = 3
"""At most this many different warnings are repeated; later ones are mostly consequences of the first."""

LINE_BYTES_MAX = 4096
"""Longer lines, which NCCL does not write, are read in parts."""
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_GROUP = re.compile(r"\bcomm 0x[0-9a-f]+ rank \d+ nranks (\d{1,9})\b.* - Init START", re.IGNORECASE)
_VIA = re.compile(r"NCCL INFO (?:Channel|Ring|Coll(?:Net)?) \d+(?:/\d+)? : \d+.* via (\S.*)$")
_NVLS = re.compile(r"NCCL INFO NVLS comm 0x")
_CHOICE = re.compile(r"NCCL INFO (\w+): (\d{1,18}) Bytes -> Algo (\w+) proto (\w+)")
_WARNING = re.compile(r"NCCL WARN (\S.*)$")


def read_files(paths: Iterable[Path]) -> NcclLog | None:
    """As `read`, from files; a file that cannot be read counts as empty."""
    return read(map(_lines, paths))


def read(logs: Iterable[Iterable[str]]) -> NcclLog | None:
    """One launch's logs, one iterable of lines for each process; None where NCCL logged nothing."""
    version: str | None = None
    transports: dict[int, Counter[str]] = {}
    receiving: dict[int, set[str]] = {}
    adding: dict[int, set[str]] = {}
    sizes: dict[tuple[str, str, str], tuple[int, int]] = {}
    warnings: dict[str, None] = {}
    for lines in logs:
        ranks = 1
        for line in lines:
            if match := _VERSION.search(line):
                version = version or match[1]
            elif match := _GROUP.search(line):
                ranks = int(match[1]) if int(match[1]) > 1 else ranks
            elif match := _VIA.search(line):
                name = transport(match[1])
                if "[receive]" in line:  # the sender logs the same channel, in its own way
                    receiving.setdefault(ranks, set()).add(name)
                else:
                    transports.setdefault(ranks, Counter())[name] += 1
                    if name.startswith("COLLNET/"):
                        adding.setdefault(ranks, set()).add(SHARP)
            elif _NVLS.search(line):
                adding.setdefault(ranks, set()).add(NVLS)
            elif match := _CHOICE.search(line):
                size, choice = int(match[2]), (match[1], match[3], match[4])
                least, most = sizes.get(choice, (size, size))
                sizes[choice] = min(size, least), max(size, most)
            elif match := _WARNING.search(line):
                warnings[match[1].strip()] = None
    groups = tuple(
        NcclGroup(
            world_size=n,
            transports=tuple(name for name, _ in transports.get(n, Counter()).most_common()),
            receives=tuple(sorted(receiving.get(n, ()))),
            in_network=tuple(sorted(adding.get(n, ()))),
        )
        for n in sorted(
            {*transports, *receiving, *adding} - {1}
        )  # 1: before any communicator with several ranks began
    )
    choices = tuple(
        NcclChoice(collective=c, algorithm=a, protocol=p, bytes_min=least, bytes_max=most)
        for (c, a, p), (least, most) in sorted(sizes.items())
    )
    if version is None and not groups and not choices and not warnings:
        return None
    return NcclLog(version=version, groups=groups, choices=choices, warnings=tuple(warnings)[:WARNINGS])


def _lines(path: Path) -> Iterator[str]:
    with contextlib.suppress(OSError, RefusedError), open_file(path, LOG_BYTES_MAX) as file:
        while line := file.readline(LINE_BYTES_MAX):
            yield line.decode("utf-8", "replace")


def transport(via: str) -> str:
    """`NET/IB/3(5)/GDRDMA(PCI)/Shared` -> `NET/IB/GDRDMA`: the transport, without card and direction."""
    kind, *rest = via.strip().split("/")
    if kind == "SHM" or not rest:
        return kind
    name = "direct" if rest[0].startswith("direct") else rest[0]
    return f"{kind}/{name}/GDRDMA" if any(part.startswith("GDRDMA") for part in rest) else f"{kind}/{name}"


NO_P2P = "NCCL_P2P_DISABLE"
_SOCKET = "NET/Socket"


def warnings(fabric: Fabric, spec: Spec) -> tuple[str, ...]:
    """A warning for each difference, and NCCL's own warnings; empty without NCCL's log."""
    if fabric.nccl is None:
        return ()
    messages = []
    for group in fabric.nccl.groups:
        if "SHM" in group.transports and _nvlink(spec, group.world_size) and spec.env.get(NO_P2P, "0") == "0":
            messages.append(
                f"at {group.world_size} ranks NCCL goes through host memory (SHM) between devices of one host, "
                f"though topology={spec.topology.name} has NVLink between them: `scaling doctor` lists which devices "
                "can reach each other"
            )
        if _SOCKET in group.transports and spec.topology.nics:
            cards = ", ".join(nic.name for nic in spec.topology.nics)
            messages.append(
                f"at {group.world_size} ranks NCCL goes over TCP ({_SOCKET}) between hosts, though "
                f"topology={spec.topology.name} has {cards}: check NCCL_IB_DISABLE, NCCL_IB_HCA and NCCL's log"
            )
        plain = [
            t for t in group.receives if t.startswith("NET/") and "Socket" not in t and "GDRDMA" not in t
        ]
        if plain:
            some = "some ranks receive" if any("GDRDMA" in t for t in group.receives) else "ranks receive"
            messages.append(
                f"at {group.world_size} ranks {some} over the network without GPUDirect RDMA ({', '.join(plain)}): "
                "load nvidia_peermem on every host, and look at NCCL_NET_GDR_LEVEL"
            )
    return (*messages, *(f"NCCL warned: {warning}" for warning in fabric.nccl.warnings))


def _nvlink(spec: Spec, world_size: int) -> bool:
    """Whether NVLink (`nvidia-smi topo -m`: NV4, NV18; a level's class or name) joins all ranks of one host.

    NVLink bridges join only pairs; host memory is then the right path between pairs.
    """
    together = max(spec.topology.shares(world_size))
    nv = [
        level for level in spec.topology.levels if (level.link_class or level.name).upper().startswith("NV")
    ]
    return any(level.ranks is None or level.ranks >= together for level in nv)
