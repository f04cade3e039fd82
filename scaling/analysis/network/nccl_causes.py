"""What NCCL's lines (nccl_log) mean: ways that are slower than they need to be, and warnings, each with what to do.

Compare the path that NCCL took with the one that the topology promises. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from scaling.analysis.network.nccl_log import SHOWN, HostWays, NcclLines
from scaling.analysis.results import Fabric
from scaling.settings.run import Spec

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
_DIRECT_OFI = (
    "look at NCCL_NET_GDR_LEVEL (PHB on Slingshot) and at what the plugin says (NET/OFI); not every instance with EFA "
    "can"
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


def causes(lines: NcclLines) -> Iterator[str]:
    """Ways that are slower than they need to be, hosts that differ from the others, and warnings with a remedy."""
    if lines.ranks == 1 and len(lines.alone) > 1:
        yield (
            f"each of {len(lines.alone)} processes ran alone, with one rank: start them with torchrun, mpirun or "
            "srun --mpi=pmix, so that they share MASTER_ADDR and WORLD_SIZE (nccl-tests: build it with MPI=1)"
        )
    yield from _shared(lines)
    yield from dict.fromkeys(filter(None, map(remedy, lines.warnings)))
    yield from _ways(lines.hosts)
    for key, value in lines.settings.items():
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
    hosts, announced = lines.hosts, dict[str, list[str]]()
    for name, host in sorted(hosts.items()):
        if host.address is not None and not (host.sends or host.receives):  # with channels, they met
            announced.setdefault(host.address[1], []).append(name)
    for address, names in announced.items():
        if len(names) > 1:
            interface = (hosts[names[0]].address or ("",))[0]
            yield (
                f"{_names(names)} announce one address, {address} on {interface}, so they do not reach each other: "
                "name the interface of the hosts' network in NCCL_SOCKET_IFNAME (docker run --network=host)"
            )


def _ways(hosts: dict[str, HostWays]) -> Iterator[str]:
    plain, direct = [], []
    # A job of one host has channels and none over the network.
    shown = any(host.sends or host.receives for host in hosts.values())
    for name, host in sorted(hosts.items()):
        if _not_direct(host.receives) or (host.without_direct and not shown):
            plain.append(name)
        elif any("GDRDMA" in t for t in host.receives):
            direct.append(name)
    if plain:
        which = f"{_names(plain)}, and not {_names(direct)}," if direct else f"{_names(plain)}"
        plugin = any("Libfabric" in t for name in plain for t in hosts[name].receives)
        way = _DIRECT_OFI if plugin else _DIRECT
        yield f"{which} receives over the network without GPUDirect RDMA, through host memory: {way}"
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
    for usual, count in Counter(sets.values()).most_common(1):
        odd = sorted(n for n, ways in sets.items() if ways != usual)
        if odd and len(sets) > 2 and 2 * count > len(sets):
            yield f"{_names(odd)} differs from the other hosts: {hosts[odd[0]].text()}"


def _not_direct(receives: Iterable[str]) -> list[str]:
    """Ways over the network, but for TCP, that go through host memory."""
    return [t for t in receives if t.startswith("NET/") and not t.endswith(("Socket", "GDRDMA"))]


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + ("" if len(names) <= 3 else f" and {len(names) - 3} more hosts")


NO_P2P = "NCCL_P2P_DISABLE"
_SOCKET = "NET/Socket"


def warnings(fabric: Fabric, spec: Spec) -> tuple[str, ...]:
    """A warning for each difference, and NCCL's own warnings; empty without NCCL's log."""
    if fabric.nccl is None:
        return ()
    differences = []
    for group in fabric.nccl.groups:
        at, plain = f"at {group.world_size} ranks", _not_direct(group.receives)
        if "SHM" in group.transports and _nvlink(spec, group.world_size) and spec.env.get(NO_P2P, "0") == "0":
            differences.append(
                f"{at} NCCL goes through host memory (SHM) between devices of one host, though "
                f"topology={spec.topology.name} has NVLink between them: `scaling doctor` lists which devices can "
                "reach each other"
            )
        if _SOCKET in group.transports and spec.topology.nics:
            cards = ", ".join(nic.name for nic in spec.topology.nics)
            differences.append(
                f"{at} NCCL goes over TCP ({_SOCKET}) between hosts, though topology={spec.topology.name} has {cards}: "
                "check NCCL_IB_DISABLE, NCCL_IB_HCA and NCCL's log"
            )
        if plain:
            some = "some ranks receive" if any("GDRDMA" in t for t in group.receives) else "ranks receive"
            differences.append(
                f"{at} {some} over the network without GPUDirect RDMA ({', '.join(plain)}): load nvidia_peermem on "
                "every host, and look at NCCL_NET_GDR_LEVEL"
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
