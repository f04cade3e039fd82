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

Compare the path that NCCL took with the one that the topology promises. Pure.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scaling.analysis.results import Fabric, NcclChoice, NcclGroup, NcclLog
from scaling.reading import LOG_BYTES_MAX, RefusedError, open_file
from scaling.settings.run import Spec

NVLS, SHARP = "NVLS", "SHARP"
WARNINGS = 3
"""At most this many different warnings are repeated; later ones are mostly consequences of the first."""
SHOWN = 12

LINE_BYTES_MAX = 4096
"""Longer lines, which NCCL does not write, are read in parts."""
_MESSAGE = re.compile(r"([\w.-]{1,255}):(\d{1,10}):\d{1,10} \[(-?\d{1,5})\] (?:\S+ ){0,2}NCCL (INFO|WARN) ")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_GROUP = re.compile(r"rank \d+ nranks (\d{1,7})\b(.* - Init START)?", re.IGNORECASE)
_VIA = re.compile(
    r"(?:Channel|Ring|Coll(?:Net)?) \d+(?:/\d+)? : \d+.*? (?:\[(send|receive)\] )?via (\S.*?)(?:\s{2}|$)"
)
_NVLS = re.compile(r"NVLS comm 0x")
_CHOICE = re.compile(r"(\w+): (\d{1,18}) Bytes -> Algo (\w+) proto (\w+)")
_CARD = re.compile(r"NET/[A-Za-z][\w ]*/(\d{1,4})")
_CARDS = re.compile(r"NET/IB : Using (.*)")
_RATE = re.compile(r"NET/IB ?: \[(\d{1,4})\] \w.* speed=(\d{4,7})\b")  # Mbit/s
_NET = re.compile(r"\+ NET\[(\d{1,4}\.\d)\] - NET/([\w-]{1,16})")  # GB/s
_SETTING = re.compile(r"(NCCL_\w{1,60}) set (?:by environment )?to (\S{1,60})")
_ADDRESS = re.compile(r"Bootstrap ?: Using (?:\[0\])?([\w.@-]{1,32}):([0-9a-f.:]{2,45})(?:%\w+)?<")
_TWICE = re.compile(r"Duplicate GPU detected : rank (\d+) and rank (\d+) both on CUDA device (\w+)")
_TURNED_OFF = {
    "NCCL_P2P_DISABLE": "takes NVLink and PCIe peer access away",
    "NCCL_IB_DISABLE": "takes InfiniBand and RoCE away",
    "NCCL_SHM_DISABLE": "takes host memory between GPUs away: without peer access they go over the network",
    "NCCL_NVLS_ENABLE": "takes reduction in NVSwitches away",
}
_DIRECT = (
    "load nvidia_peermem (or use dma-buf), and look at NCCL_NET_GDR_LEVEL, ACS and the container's devices (GeForce "
    "and GB10 cannot)"
)
_REMEDIES = (
    (
        r"ibv_(?:create_[cq]|reg_mr)\w* failed",
        "RDMA could lock no memory: `ulimit -l` has to be unlimited within the job (limits.conf and a new login; "
        "--ulimit memlock=-1 for a container)",
    ),
    (
        r"Got completion .*(?:error |status=)12\b",
        "a network card got no answer in time, so two cards do not reach each other: look at NCCL_IB_GID_INDEX (RoCE; "
        "show_gids), NCCL_IB_HCA, cables and ports; ib_write_bw between the two cards shows it without NCCL",
    ),
    (
        r"Got completion .*(?:error |status=)4\b",
        "GPUDirect RDMA fails, mostly since ACS is on in PCI bridges: switch it off (NCCL_NET_GDR_LEVEL=0 goes around "
        "it, slowly)",
    ),
    (
        r"shared memory segment|posix_fallocate failed|failed to extend /dev/shm",
        "shared memory (/dev/shm) is too small: docker run --shm-size=1g or --ipc=host",
    ),
    (
        r"no socket interface found",
        "NCCL_SOCKET_IFNAME names no interface of this host: unset it, or name one of `ip -br addr`",
    ),
    (
        r"[Cc]onnect\w*\b.*(?:refused|timed out|abort|No route)",
        "the address that another rank announced is not reachable: name the interface of the hosts' network in "
        "NCCL_SOCKET_IFNAME (not docker0, virbr0 or lo), and look at the firewall",
    ),
    (
        r"connecting to address .*family \d+ is neither",
        "two ranks sent to each other before either received: put both calls between ncclGroupStart and ncclGroupEnd "
        "(torch: batch_isend_irecv), or let one receive first",
    ),
    (
        r"NET/OFI Unable to register memory",
        "libfabric cannot register the GPU's memory: the container lacks libcuda.so, or, with NCCL 2.19 on EFA, "
        "libfabric is older than EFA's installer 1.29.1 (FI_EFA_SET_CUDA_SYNC_MEMOPS=0 goes around it)",
    ),
    (
        r"NET/OFI .*(?:provider|initialization failed)",
        "the plugin for EFA found no provider, so NCCL goes over TCP: give the container the EFA devices and libfabric",
    ),
)
"""A warning of NCCL, and what its threads found behind it (NVIDIA/nccl#342, #380, #426, #928, #229, #2057,
nccl-tests#206, awslabs/awsome-distributed-ai#203)."""


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
    gpus: set[str] = field(default_factory=set)
    """Process and device of each GPU that has lines."""
    cards: int = 0
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
    hosts: dict[str, HostWays] = field(default_factory=dict)
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
            host, text = self.hosts.setdefault(mark[1], HostWays()), line[mark.end() : end].strip()
            host.gpus.add(mark[2] + mark[3])
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
        elif _NVLS.match(text):
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
        elif address := _ADDRESS.match(text):
            host.address = address[1], address[2]
        elif "GPU Direct RDMA Disabled" in text:
            host.without_direct = True
        elif setting := _SETTING.search(text):
            self.settings[setting[1]] = setting[2].rstrip(".")
        return world_size

    def network(self) -> Cards | None:
        """The cards of each host, where hosts agree; those that most others leave aside (storage) are not counted."""
        each = set()
        for host in self.hosts.values():
            used, rates = len(host.cards_used), set(host.rates.values())
            count = host.cards or len(host.rates) or used
            if count:  # a host that uses half of its cards or fewer is held against all of them
                each.add(Cards(used if 2 * used > count else count, rates.pop() if len(rates) == 1 else None))
        return each.pop() if len(each) == 1 else None

    def causes(self) -> Iterator[str]:
        """Ways that are slower than they need to be, hosts that differ from the others, and warnings with a remedy."""
        if self.ranks == 1 and len(self.alone) > 1:
            yield (
                f"each of {len(self.alone)} processes ran alone, with one rank: start them with torchrun, mpirun or "
                "srun --mpi=pmix, so that they share MASTER_ADDR and WORLD_SIZE (nccl-tests: build it with MPI=1)"
            )
        yield from _shared(self)
        yield from dict.fromkeys(filter(None, map(remedy, self.warnings)))
        yield from _ways(self.hosts)
        for key, value in self.settings.items():
            if key in _TURNED_OFF and (value == "0") == key.endswith("_ENABLE"):
                yield f"{key}={value} is set, which {_TURNED_OFF[key]}"


def remedy(warning: str) -> str | None:
    """What lies behind a warning of NCCL and what to do; None for one that is not known."""
    return next((text for pattern, text in _REMEDIES if re.search(pattern, warning)), None)


def _shared(lines: NcclLines) -> Iterator[str]:
    """A GPU that several ranks use, and an address that several hosts announce."""
    users: dict[str, set[int]] = {}
    for twice in filter(None, map(_TWICE.search, lines.warnings)):
        users.setdefault(twice[3], set()).update((int(twice[1]), int(twice[2])))
    for device, ranks in users.items():
        yield (
            f"ranks {', '.join(map(str, sorted(ranks)))} use one GPU ({device}): give each process a GPU of its own "
            "(torch.cuda.set_device(LOCAL_RANK), no CUDA_VISIBLE_DEVICES that is the same for all)"
        )
    announced: dict[str, list[str]] = {}
    for name, host in sorted(lines.hosts.items()):
        if host.address is not None and not (host.sends or host.receives):  # with channels, they met
            announced.setdefault(host.address[1], []).append(name)
    for address, names in announced.items():
        if len(names) > 1:
            interface = (lines.hosts[names[0]].address or ("",))[0]
            yield (
                f"{_names(names)} announce one address, {address} on {interface}, so they do not reach each other: "
                "name the interface of the hosts' network in NCCL_SOCKET_IFNAME (docker run --network=host)"
            )


def _ways(hosts: dict[str, HostWays]) -> Iterator[str]:
    plain, direct = [], []
    for name, host in sorted(hosts.items()):
        net = [t for t in host.receives if t.startswith("NET/") and "Socket" not in t]
        inside = len(hosts) == 1 and host.sends  # one host needs no network
        if any(not t.endswith("GDRDMA") for t in net) or (host.without_direct and not net and not inside):
            plain.append(name)
        elif net:
            direct.append(name)
    if plain:
        which = f"{_names(plain)}, and not {_names(direct)}," if direct else f"{_names(plain)}"
        yield f"{which} receives over the network without GPUDirect RDMA, through host memory: {_DIRECT}"
    socket = [n for n, h in hosts.items() if any("Socket" in t for t in (*h.sends, *h.receives))]
    if socket:
        yield (
            f"{_names(socket)} goes over TCP (NET/Socket): if there are InfiniBand or RoCE cards, look at "
            "NCCL_IB_DISABLE, NCCL_IB_HCA, and whether the container has libibverbs and sees /dev/infiniband; EFA and "
            "Slingshot need the plugin aws-ofi-nccl (libnccl-net.so) in LD_LIBRARY_PATH"
        )
    shm = [n for n, h in hosts.items() if "SHM" in h.sends]
    if shm:
        some = " between some of its GPUs" if any("P2P" in t for n in shm for t in hosts[n].sends) else ""
        yield (
            f"{_names(shm)} goes through host memory (SHM){some}: where NVLink or a PCIe switch joins them, "
            "peer access is off. Look at NCCL_P2P_DISABLE, ACS, IOMMU, and srun --gpus-per-task, which hides the peers"
        )
    # A GPU uses its nearest card, so fewer GPUs than cards leave cards aside.
    few = [n for n, h in hosts.items() if 0 < len(h.cards_used) < min(h.cards, len(h.gpus))]
    for name in few[:SHOWN]:
        yield (
            f"{name} uses {len(hosts[name].cards_used)} of {hosts[name].cards} network cards: look at NCCL_IB_HCA, at "
            "the number of GPUs a host, and at `nvidia-smi topo -m`"
        )
    sets = {n: frozenset((*h.sends, *h.receives)) for n, h in hosts.items() if h.sends or h.receives}
    usual = Counter(sets.values()).most_common(1)
    if len(sets) > 2 and usual and 2 * usual[0][1] > len(sets):
        odd = sorted(n for n, ways in sets.items() if ways != usual[0][0])
        if odd:
            yield f"{_names(odd)} differs from the other hosts: {hosts[odd[0]].text()}"


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + ("" if len(names) <= 3 else f" and {len(names) - 3} more hosts")


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


NO_P2P = "NCCL_P2P_DISABLE"
_SOCKET = "NET/Socket"


def warnings(fabric: Fabric, spec: Spec) -> tuple[str, ...]:
    """A warning for each difference, and NCCL's own warnings; empty without NCCL's log."""
    if fabric.nccl is None:
        return ()
    differences = []
    for group in fabric.nccl.groups:
        if "SHM" in group.transports and _nvlink(spec, group.world_size) and spec.env.get(NO_P2P, "0") == "0":
            differences.append(
                f"at {group.world_size} ranks NCCL goes through host memory (SHM) between devices of one host, "
                f"though topology={spec.topology.name} has NVLink between them: `scaling doctor` lists which devices "
                "can reach each other"
            )
        if _SOCKET in group.transports and spec.topology.nics:
            cards = ", ".join(nic.name for nic in spec.topology.nics)
            differences.append(
                f"at {group.world_size} ranks NCCL goes over TCP ({_SOCKET}) between hosts, though "
                f"topology={spec.topology.name} has {cards}: check NCCL_IB_DISABLE, NCCL_IB_HCA and NCCL's log"
            )
        plain = [
            t for t in group.receives if t.startswith("NET/") and "Socket" not in t and "GDRDMA" not in t
        ]
        if plain:
            some = "some ranks receive" if any("GDRDMA" in t for t in group.receives) else "ranks receive"
            differences.append(
                f"at {group.world_size} ranks {some} over the network without GPUDirect RDMA ({', '.join(plain)}): "
                "load nvidia_peermem on every host, and look at NCCL_NET_GDR_LEVEL"
            )
    warned = (
        f"NCCL warned: {text}" + (f": {way}" if (way := remedy(text)) else "")
        for text in fabric.nccl.warnings
    )
    return (*differences, *warned)


def _nvlink(spec: Spec, world_size: int) -> bool:
    """Whether NVLink (`nvidia-smi topo -m`: NV4, NV18; a level's class or name) joins all ranks of one host.

    NVLink bridges join only pairs; host memory is then the right path between pairs.
    """
    together = max(spec.topology.shares(world_size))
    nv = [
        level for level in spec.topology.levels if (level.link_class or level.name).upper().startswith("NV")
    ]
    return any(level.ranks is None or level.ranks >= together for level in nv)
