"""Read NCCL's log (NCCL_DEBUG=INFO): transports, in-network reduction, and algorithm and protocol by message size.

Lines as NCCL 2.4 to 2.31 print them (src/init.cc, src/transport/*.cc, src/enqueue.cc), `host:pid:tid [device] NCCL
INFO` before each. At the start and once:

    Bootstrap : Using eth0:192.0.2.2<0>                  NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ...
    ncclCommInitRankConfig comm 0x... rank 0 nranks 8 cudaDev 0 ... - Init START
    Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM            SHM/direct/direct, [send] via NET/IB/0/GDRDMA
    CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA
    NVLS comm 0x... headRank 0 nHeads 8 ...

and of every collective, on rank 0, with the subsystem TUNING alone:

    AllReduce: 67108864 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}

A channel's line does not name its communicator. It belongs to the last one with several ranks that its process began.
A channel has a line at its sender and one at its receiver. A receiver without GPUDirect RDMA shows in its `[receive]`
line alone; senders lack it by default on older GPUs.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scaling.analysis.results import NcclChoice, NcclGroup, NcclLog
from scaling.reading import LOG_BYTES_MAX, RefusedError, open_file

NVLS, SHARP = "NVLS", "SHARP"
WARNINGS = 3
"""At most this many different warnings are repeated; later ones are mostly consequences of the first."""
SHOWN = 12
TORN = 20
"""A host without the line that NCCL begins with, and with fewer than one in so many of another's lines, is none."""
LINE_BYTES_MAX = 4096
"""Longer lines, which NCCL does not write, are read in parts."""
_MESSAGE = re.compile(r"([\w.-]{1,255}):(\d{1,10}):\d{1,10} \[(-?\d{1,5})\] (?:\S+ ){0,2}NCCL (INFO|WARN) ")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_GROUP = re.compile(r"rank \d+ nranks (\d{1,7})\b(.* - Init START)?", re.IGNORECASE)
_VIA = re.compile(
    r"(?:Channel|Ring|Coll(?:Net)?) \d+(?:/\d+)? : \d+.*? (?:\[(send|receive)\] )?via (\S.*?)(?:\s{2}|$)"
)
_CHOICE = re.compile(r"(\w+): (\d{1,18}) Bytes -> Algo (\w+) proto (\w+)")
_CARD = re.compile(r"NET/[A-Za-z][\w ]*/(\d{1,4})")
_CARDS = re.compile(r"NET/IB : Using (.*)")
_EFA = re.compile(r"NET/OFI Selected [Pp]rovider is efa\b.*found (\d{1,3}) nics")
_RATE = re.compile(r"NET/IB ?: \[(\d{1,4})\] \w.* speed=(\d{4,7})\b")  # Mbit/s
_NET = re.compile(r"\+ NET\[(\d{1,4}\.\d)\] - NET/([\w-]{1,16})")  # GB/s
_SETTING = re.compile(r"(NCCL_\w{1,60}) set (?:by environment )?to (\S{1,60})")
_ADDRESS = re.compile(r"Bootstrap ?: Using (?:\[0\])?([\w.@-]{1,32}):([0-9a-f.:]{2,45})(?:%\w+)?<")


@dataclass(frozen=True, slots=True)
class Cards:
    """Network cards of one host."""

    number: int
    gbit_s: int | None
    """A card's rate; None where it is not known."""

    @staticmethod
    def of(text: str) -> Cards | None:
        """`8x400G`; None for anything else."""
        match = re.match(r"(\d+)x(\d+)G", text)
        return Cards(int(match[1]), int(match[2])) if match else None

    def __str__(self) -> str:
        return f"{self.number} cards" if self.gbit_s is None else f"{self.number}x{self.gbit_s}G"

    @property
    def together(self) -> int | None:
        """Gbit/s of all."""
        return self.gbit_s and self.gbit_s * self.number

    def alike(self, other: Cards) -> bool:
        """Whether both carry the same together, or, where a rate is not known, are as many."""
        if self.together and other.together:
            return self.together == other.together
        return self.number == other.number


@dataclass(slots=True)
class HostWays:
    """How the channels of one host go; channels by transport."""

    sends: Counter[str] = field(default_factory=Counter)
    receives: Counter[str] = field(default_factory=Counter)
    cards_used: set[str] = field(default_factory=set)
    lines: int = 0
    gpus: set[str] = field(default_factory=set)
    """Process and device of each GPU that has lines."""
    cards: int = 0
    efa: int = 0
    """Cards that the plugin for EFA found; it joins several to one for NCCL."""
    rates: dict[str, int] = field(default_factory=dict)
    """Gbit/s by card."""
    without_direct: bool = False
    """NCCL says of a card that GPUDirect RDMA is disabled."""
    address: tuple[str, str] | None = None
    """Interface and address that the other ranks are told."""

    def text(self) -> str:
        """Both directions in words."""
        send = ", ".join(f"{name} x{n}" for name, n in self.sends.most_common()) or "none shown"
        receive = ", ".join(f"{name} x{n}" for name, n in self.receives.most_common())
        return f"sends {send}" + (f"; receives {receive}" if receive else "")


@dataclass(slots=True)
class NcclLines:
    """What lines of NCCL say, by host and by world size; `take` adds a line."""

    version: str | None = None
    ranks: int = 0
    """Ranks of the largest communicator."""
    alone: set[str] = field(default_factory=set)
    """Processes that had a communicator of one rank."""
    named: dict[str, HostWays] = field(default_factory=dict)
    """By host, as lines begin; a name may be torn."""
    settings: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    sends: dict[int, Counter[str]] = field(default_factory=dict)
    receives: dict[int, set[str]] = field(default_factory=dict)
    in_network: dict[int, set[str]] = field(default_factory=dict)
    sizes: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    """(collective, algorithm, protocol) -> smallest and largest message, bytes."""

    def take(self, line: str, world_size: int = 1) -> int:
        """Add a line; the size of the communicator that its process began last, `world_size` before it."""
        if version := _VERSION.search(line):
            self.version = self.version or version[1]
        marks = list(_MESSAGE.finditer(line))
        ends = [*(mark.start() for mark in marks[1:]), len(line)]
        for mark, end in zip(marks, ends, strict=False):  # processes print into each other's lines
            host, text = self.named.setdefault(mark[1], HostWays()), line[mark.end() : end].strip()
            host.gpus.add(f"{mark[2]} {mark[3]}")
            host.lines += 1
            if mark[4] == "WARN":
                self.warnings[text] = None
                continue
            world_size = self._info(host, text, world_size)
            if (group := _GROUP.search(text)) and group[1] == "1":
                self.alone.add(mark[1] + mark[2])
        return world_size

    def _info(self, host: HostWays, text: str, world_size: int) -> int:
        if via := _VIA.search(text):
            name = transport(via[2])
            if via[1] == "receive":  # the sender logs the same channel, in its own way
                host.receives[name] += 1
                self.receives.setdefault(world_size, set()).add(name)
            else:
                host.sends[name] += 1
                self.sends.setdefault(world_size, Counter())[name] += 1
                if name.startswith("COLLNET/"):
                    self.in_network.setdefault(world_size, set()).add(SHARP)
            if card := _CARD.match(via[2]):
                host.cards_used.add(card[1])
        elif group := _GROUP.search(text):
            self.ranks = max(self.ranks, int(group[1]))
            return int(group[1]) if group[2] and int(group[1]) > 1 else world_size
        elif text.startswith("NVLS comm 0x"):
            self.in_network.setdefault(world_size, set()).add(NVLS)
        elif choice := _CHOICE.match(text):
            size, key = int(choice[2]), (choice[1], choice[3], choice[4])
            least, most = self.sizes.get(key, (size, size))
            self.sizes[key] = min(size, least), max(size, most)
        elif rate := _RATE.search(text):
            host.rates[rate[1]] = round(int(rate[2]) / 1000)
        elif net := _NET.search(text):
            host.rates.setdefault(net[2], round(8 * float(net[1])))
        elif cards := _CARDS.search(text):
            host.cards = len(re.findall(r"\[\d+\]\w+:\d+/(?:IB|RoCE)", cards[1]))
        elif efa := _EFA.match(text):
            host.efa = int(efa[1])
        elif address := _ADDRESS.match(text):
            host.address = address[1], address[2]
        elif "GPU Direct RDMA Disabled" in text:
            host.without_direct = True
        elif setting := _SETTING.search(text):
            self.settings[setting[1]] = setting[2].rstrip(".")
        return world_size

    @property
    def hosts(self) -> dict[str, HostWays]:
        """By host, without names that processes tore as they printed into each other's lines."""
        most = max((host.lines for host in self.named.values()), default=0)
        begun = any(host.address for host in self.named.values())
        return {n: h for n, h in self.named.items() if h.address or not begun or TORN * h.lines > most}

    def network(self) -> Cards | None:
        """The cards of each host, where hosts agree; those that most others leave aside (storage) are not counted."""
        each = set()
        for host in self.hosts.values():
            used, rates = len(host.cards_used), set(host.rates.values())
            count = host.efa or host.cards or len(host.rates) or used
            if count:  # a host that uses half of its cards or fewer is held against all of them
                each.add(Cards(used if 2 * used > count else count, rates.pop() if len(rates) == 1 else None))
        return each.pop() if len(each) == 1 else None


def read_files(paths: Iterable[Path]) -> NcclLog | None:
    """As `read`, from files; a file that cannot be read counts as empty."""
    return read(map(_whole_file, paths))


def read(logs: Iterable[Iterable[str]]) -> NcclLog | None:
    """One launch's logs, one iterable of lines for each process; None where NCCL logged nothing."""
    seen = NcclLines()
    for lines in logs:
        ranks = 1
        for line in lines:
            ranks = seen.take(line, ranks)
    # 1: before any communicator with several ranks began
    sizes = sorted({*seen.sends, *seen.receives, *seen.in_network} - {1})
    groups = tuple(
        NcclGroup(
            world_size=n,
            transports=tuple(name for name, _ in seen.sends.get(n, Counter()).most_common()),
            receives=tuple(sorted(seen.receives.get(n, ()))),
            in_network=tuple(sorted(seen.in_network.get(n, ()))),
        )
        for n in sizes
    )
    choices = tuple(
        NcclChoice(collective=c, algorithm=a, protocol=p, bytes_min=least, bytes_max=most)
        for (c, a, p), (least, most) in sorted(seen.sizes.items())
    )
    if seen.version is None and not groups and not choices and not seen.warnings:
        return None
    warned = tuple(seen.warnings)[:WARNINGS]
    return NcclLog(version=seen.version, groups=groups, choices=choices, warnings=warned)


def _whole_file(path: Path) -> Iterator[str]:
    with contextlib.suppress(OSError, RefusedError):
        yield from lines_of(path)


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a log. OSError and RefusedError where it cannot be read."""
    with open_file(path, LOG_BYTES_MAX) as file:
        while line := file.readline(LINE_BYTES_MAX):
            yield line.decode("utf-8", "replace")


def transport(via: str) -> str:
    """`NET/IB/3(5)/GDRDMA(PCI)/Shared` -> `NET/IB/GDRDMA`: the transport, without card and direction."""
    kind, *rest = via.strip().split("/")
    if kind == "SHM" or kind.startswith("direct shared memory"):  # up to NCCL 2.11
        return "SHM"
    if not rest:
        return kind
    name = "direct" if rest[0].startswith("direct") else rest[0]
    return f"{kind}/{name}/GDRDMA" if any(part.startswith("GDRDMA") for part in rest) else f"{kind}/{name}"
