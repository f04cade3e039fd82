"""Rules over what NVML reports for each GPU, over a rank's host, and over pairs of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from scaling.analysis.results.doctor import ERROR, WARNING, Finding, PairBandwidth, Problem
from scaling.hardware.devices import distance
from scaling.hardware.nvml import REASONS
from scaling.hardware.telemetry import HostRecord
from scaling.reading import as_number
from scaling.records.checkup import RankCheck
from scaling.units import format_bytes, significant

THROTTLED_SHARE = 0.1
"""Share of the samples under load; a single sample may be a transient."""
BUSY_PERCENT = 10
"""Below this utilisation a device is not under load, and may have lowered its link speed and clocks."""

_SLOWDOWNS = {
    "hw_slowdown": "look at power supply and cooling: the board itself asked for lower clocks",
    "hw_thermal": "look at the cooling of this host: the device is too hot",
    "sw_thermal": "look at the cooling of this host: the device is too hot",
    "hw_power_brake": "look at the power supply of this host: its brake signal is on",
}


def problems(host: HostRecord, rank_of: dict[int, int]) -> Iterator[Problem]:
    """All problems of one host. `rank_of`: a GPU's NVML index -> the rank that uses it; unused GPUs are checked too."""
    links = [_up(gpu) for gpu in host.gpus]
    for index, gpu in enumerate(host.gpus):
        load = [s.gpus[index] for s in host.samples if index < len(s.gpus)]
        busy = [s for s in load if (s.get("utilisation_percent") or 0) >= BUSY_PERCENT]
        findings = (*_state(gpu), *_errors(load), *_pcie(gpu, busy), *_clocks(gpu, busy), *_links(gpu, links))
        for what, remedy, severity in (*findings, *_nic(host, gpu)):
            yield Problem(
                what=f"GPU {gpu['index']}: {what}",
                rank=rank_of.get(index),
                remedy=remedy,
                severity=severity,
                host=host.host,
            )


def _state(gpu: dict[str, Any]) -> Iterator[Finding]:
    lost = gpu.get("lost")
    if lost and "permission" not in lost.lower():  # on a shared host, other users' devices cannot be opened
        yield Finding(
            f"NVML lists it and cannot open it ({lost})",
            "look for its Xid in dmesg (79: it fell off the bus), then reset it or reboot the host",
            ERROR,
        )
    if gpu.get("persistence") is False:
        yield Finding(
            "persistence mode is off, so the driver unloads between programs and clocks start cold",
            "nvidia-smi -pm 1, or run nvidia-persistenced",
        )
    if gpu.get("mig"):
        yield Finding(
            "MIG mode is on: a rank gets a slice of the device, and slices have no peer-to-peer access",
            "nvidia-smi -mig 0, or ask the scheduler for whole devices",
        )
    if gpu.get("ecc") is not None and gpu["ecc"] != gpu.get("ecc_pending"):
        yield Finding("an ECC change waits for a reboot", "reboot the host, or undo it with nvidia-smi -e")
    if gpu.get("remap_failed"):
        yield Finding(
            "a row could not be remapped: its memory is failing", "take the device out of service", ERROR
        )
    limit, default = gpu.get("power_limit_mw"), gpu.get("power_default_mw")
    if limit and default and limit < default:
        yield Finding(
            f"the power limit is {limit / 1000:.0f} W of {default / 1000:.0f} W",
            f"nvidia-smi -pl {default / 1000:.0f}, or expect lower clocks",
        )
    application, highest = gpu.get("sm_application_mhz"), gpu.get("sm_max_mhz")
    # A card's default application clock is no limit: a T4's is 585 MHz, and it runs at up to 1590 MHz.
    chosen = application != gpu.get("sm_application_default_mhz")
    if application and highest and chosen and application < 0.6 * highest:
        clocks = f"application clocks hold it to {application} MHz of {highest} MHz"
        yield Finding(clocks, "nvidia-smi -rac")


def _errors(load: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    worst = max((s.get("ecc_uncorrected") or 0 for s in load), default=0)
    if worst:
        yield Finding(
            f"{worst} uncorrected ECC errors",
            "drain the host and reset the device; replace it if they return",
            ERROR,
        )
    xids = sorted({s["xid"] for s in load if s.get("xid") is not None})
    if xids:
        yield Finding(
            f"Xid {', '.join(map(str, xids))}", "look the Xid up in NVIDIA's list and in dmesg", ERROR
        )
    others = max((s.get("processes") or 0 for s in load), default=0)
    if others > 1:
        yield Finding(
            f"{others} processes use it at once",
            "give each rank a device of its own, and end other programs that use it",
        )


def _pcie(gpu: dict[str, Any], busy: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Checked under load, because an idle link may lower its generation to save power (but not its width)."""
    for what, lesser in (("width", "x"), ("generation", "gen ")):
        most = gpu.get(f"pcie_max_{what}")
        seen = [s[f"pcie_{what}"] for s in busy if s.get(f"pcie_{what}") is not None]
        if most and seen and max(seen) < most:
            yield Finding(
                f"its PCIe link runs at {lesser}{max(seen)} of {lesser}{most} under load",
                "reseat the card or its riser, and look at the slot's lanes and the firmware's PCIe settings",
                ERROR if what == "width" else WARNING,
            )


def _clocks(gpu: dict[str, Any], busy: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    samples = [s for s in busy if s.get("reasons") is not None]
    if not samples:
        return
    clocks = [s["sm_mhz"] for s in samples if s.get("sm_mhz")]
    at = f" at {min(clocks)} of {gpu['sm_max_mhz']} MHz" if clocks and gpu.get("sm_max_mhz") else ""
    for name, remedy in _SLOWDOWNS.items():
        share = sum(bool(s["reasons"] & REASONS[name]) for s in samples) / len(samples)
        if share > THROTTLED_SHARE:
            yield Finding(f"throttled ({name}) in {share:.0%} of the samples under load{at}", remedy, ERROR)
            return  # one cause sets several bits


def _links(gpu: dict[str, Any], ups: Sequence[int]) -> Iterator[Finding]:
    """A link counts as down if another GPU of the host has more links up: boards leave some unconnected on purpose."""
    up = _up(gpu)
    if gpu.get("nvlinks") and up < max(ups):
        down = [str(i) for i, state in enumerate(gpu["nvlinks"]) if not state]
        yield Finding(
            f"{up} of {max(ups)} NVLinks are up (down: {', '.join(down)})",
            "nvidia-smi nvlink -s; look at the bridge or the fabric manager, then reset the device",
            ERROR,
        )


def _up(gpu: dict[str, Any]) -> int:
    return sum(bool(state) for state in gpu.get("nvlinks") or ())


def _nic(host: HostRecord, gpu: dict[str, Any]) -> Iterator[Finding]:
    """The nearest InfiniBand card of a GPU should not be on another NUMA node."""
    cards = [nic for nic in host.nics if nic["kind"] == "infiniband"]
    path, node = gpu.get("pci_path") or [], gpu.get("numa_node")
    if {distance(path, nic["pci"], nodes=(node, nic.get("numa_node"))) for nic in cards} == {"SYS"}:
        yield Finding(
            "every network card is on another NUMA node (SYS)",
            "use the devices beside the cards, or set NCCL_IB_HCA and NCCL_CROSS_NIC by hand",
        )


def index_of(gpus: Iterable[dict[str, Any]], facts: Mapping[str, Any]) -> int | None:
    """The NVML index of a rank's device, by its UUID, else by its place on the PCI bus."""
    uuid, pci = facts.get("device_uuid"), facts.get("device_pci")
    for gpu in gpus:
        if uuid and str(gpu.get("uuid", "")).removeprefix("GPU-") == str(uuid).removeprefix("GPU-"):
            return int(gpu["index"])
        if pci and gpu.get("pci") == pci:
            return int(gpu["index"])
    return None


def indices(host: HostRecord, facts: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """Rank -> NVML index of its device, on one host. `facts`: of the host's ranks."""
    index_of_rank = {rank: index_of(host.gpus, flat) for rank, flat in facts.items()}
    return {rank: index for rank, index in index_of_rank.items() if index is not None}


SHARED_MEMORY_BYTES = 2**30
"""DataLoader workers pass batches through shared memory; Docker's default is 64 MiB."""
LOCKED_MEMORY_BYTES = 2**31
"""RDMA locks its buffers in memory; a smaller limit is a container's or a system's unchanged default."""
OPEN_FILES = 4096
SKEW_NS = 50_000_000
"""Larger clock offsets make logs of several hosts hard to align; smaller ones are within NTP's error."""
EVERY_COLLECTIVE = {"COLL", "TUNING", "CALL", "ALL"}
"""Subsystems that make NCCL log every collective (NCCL's environment variables, NCCL_DEBUG_SUBSYS)."""
SLOW_PAIR = 0.6
"""A pair is slow below this share of the median pair of its kind."""


def host_problems(check: RankCheck, host: HostRecord | None, gpu: dict[str, Any] | None) -> Iterator[Problem]:
    """All problems of one rank. `gpu`: NVML's facts about its device."""
    for what, remedy, severity in (
        *_binding(check.facts, host, gpu),
        *_limits(check.facts, host),
        *_iommu(check.facts, host, gpu),
        *_clock(check),
        *_environment(check.facts),
    ):
        yield Problem(what=what, rank=check.rank, remedy=remedy, severity=severity, host=check.host)


def _binding(facts: dict[str, Any], host: HostRecord | None, gpu: dict[str, Any] | None) -> Iterator[Finding]:
    """A rank that is bound to one NUMA node should be bound to its device's node."""
    node, nodes = gpu.get("numa_node") if gpu else None, facts.get("numa_nodes")
    only = as_number(str(nodes))
    if host is not None and len(host.nodes) > 1 and node is not None and only is not None and only != node:
        yield Finding(
            f"bound to the processors of NUMA node {nodes}, its device is on node {node}",
            f"numactl --cpunodebind={node} --membind={node}, or let the scheduler bind by device",
            ERROR,
        )
    quota, threads = facts.get("cgroup_cores"), facts.get("flags.threads")
    if quota is not None and threads is not None and quota < threads:
        yield Finding(
            f"its cgroup gives {quota:g} cores for {threads} threads",
            f"ask for {threads} cores a rank, or set threads={max(1, int(quota))}",
        )


def _limits(facts: dict[str, Any], host: HostRecord | None) -> Iterator[Finding]:
    shared = facts.get("shared_memory_bytes")
    if shared is not None and shared < SHARED_MEMORY_BYTES:
        yield Finding(
            f"{format_bytes(shared)} of shared memory (/dev/shm)",
            "docker run --shm-size=8g (or --ipc=host): loaders and NCCL's SHM transport need it",
        )
    files = facts.get("limit.open_files")
    if files is not None and files < OPEN_FILES:
        yield Finding(f"at most {files} open files", f"ulimit -n {OPEN_FILES * 16}")
    locked = facts.get("limit.locked_memory_bytes")
    infiniband = host is not None and any(nic["kind"] == "infiniband" for nic in host.nics)
    if infiniband and locked is not None and locked < LOCKED_MEMORY_BYTES:
        yield Finding(
            f"at most {format_bytes(locked)} of locked memory, and RDMA needs to lock its buffers",
            "ulimit -l unlimited (limits.conf, or LimitMEMLOCK=infinity for the scheduler's daemon)",
            ERROR,
        )


def _iommu(facts: dict[str, Any], host: HostRecord | None, gpu: dict[str, Any] | None) -> Iterator[Finding]:
    """ACS sends traffic between devices through the root complex (NCCL's troubleshooting guide, PCI ACS)."""
    if gpu is not None and host is not None and host.acs_bridges and not facts.get("virtual_machine"):
        yield Finding(
            f"ACS is on in {host.acs_bridges} PCI bridges: peer-to-peer copies go through the processor",
            "switch ACS off in the firmware, or with setpci on each bridge",
        )


def _clock(check: RankCheck) -> Iterator[Finding]:
    if abs(check.clock_offset_ns) > SKEW_NS + check.clock_bound_ns:
        yield Finding(
            f"its wall clock is {check.clock_offset_ns / 1e6:+.0f} ms off rank 0's",
            "run chrony or ntpd on every host",
        )


def _environment(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts.get("env.NVIDIA_TF32_OVERRIDE") is not None:
        yield Finding(
            f"NVIDIA_TF32_OVERRIDE={facts['env.NVIDIA_TF32_OVERRIDE']} overrules every TF32 switch in the code",
            "unset it, and set torch.backends.*.allow_tf32",
        )
    if str(facts.get("env.CUDA_LAUNCH_BLOCKING", "0")) not in ("", "0"):
        yield Finding("CUDA_LAUNCH_BLOCKING makes every launch wait", "unset it", ERROR)
    if _logs_collectives(facts):
        yield Finding(
            f"NCCL_DEBUG={facts['env.NCCL_DEBUG']} with NCCL_DEBUG_SUBSYS={facts.get('env.NCCL_DEBUG_SUBSYS')} writes "
            "while it measures",
            "unset both: NCCL's log of its start is recorded anyway",
        )
    if str(facts.get("env.NCCL_P2P_DISABLE", "0")) == "1":
        yield Finding("NCCL_P2P_DISABLE=1 sends traffic between devices through host memory", "unset it")
    if str(facts.get("env.NCCL_IB_DISABLE", "0")) == "1":
        yield Finding("NCCL_IB_DISABLE=1 sends traffic between hosts over TCP", "unset it")


def _logs_collectives(facts: dict[str, Any]) -> bool:
    """Whether NCCL writes a line for every collective. By itself INFO writes at the start (INIT, BOOTSTRAP, ENV)."""
    level = str(facts.get("env.NCCL_DEBUG", "")).upper()
    subsystems = str(facts.get("env.NCCL_DEBUG_SUBSYS") or "INIT").upper()
    but = subsystems.startswith("^")  # all but those that are named
    named = set(subsystems.removeprefix("^").split(","))
    logged = EVERY_COLLECTIVE - named if but else EVERY_COLLECTIVE & named
    return level == "TRACE" or (level == "INFO" and bool(logged))


def pair_problems(pairs: Sequence[PairBandwidth]) -> Iterator[Problem]:
    """Pairs that are clearly slower than others of the same kind, grouped by the rank that they share."""
    for same_host in (True, False):
        kind = [p for p in pairs if p.same_host == same_host]
        if len(kind) < 3:  # with fewer pairs, none can stand out
            continue
        usual = median(p.bandwidth_gbit_s.value for p in kind)
        slow = [p for p in kind if p.bandwidth_gbit_s.value < SLOW_PAIR * usual]
        for rank, its in _by_rank(slow):
            worst = min(p.bandwidth_gbit_s.value for p in its)
            peers = ", ".join(str(p.second if p.first == rank else p.first) for p in its)
            yield Problem(
                what=f"{significant(worst)} Gbit/s to {'rank' if len(its) == 1 else 'ranks'} {peers}, "
                f"the median pair {'on one host' if same_host else 'between hosts'} has {significant(usual)}",
                rank=rank,
                remedy="look at the link that these pairs share: PCIe width, NVLink, cable, switch port",
                severity=WARNING,
            )


def _by_rank(slow: Iterable[PairBandwidth]) -> Iterator[tuple[int, list[PairBandwidth]]]:
    """Each slow pair once, under the rank that has most of them."""
    left = list(slow)
    while left:
        counts = Counter(rank for pair in left for rank in (pair.first, pair.second))
        rank = max(counts, key=lambda r: (counts[r], r))
        its = [p for p in left if rank in (p.first, p.second)]
        left = [p for p in left if p not in its]
        yield rank, its
