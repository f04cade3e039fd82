"""Rules over a rank's host: binding, limits, shared memory, IOMMU, clock offset, environment; and slow pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from scaling.analysis.results.doctor import ERROR, WARNING, PairBandwidth, Problem
from scaling.hardware.telemetry import HostRecord
from scaling.reading import as_number
from scaling.records.checkup import RankCheck
from scaling.units import format_bytes

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


def problems(check: RankCheck, host: HostRecord | None, gpu: dict[str, Any] | None) -> Iterator[Problem]:
    """All problems of one rank. `gpu`: NVML's facts about its device."""
    for what, remedy, severity in (
        *_binding(check.facts, host, gpu),
        *_limits(check.facts, host),
        *_iommu(check.facts, host, gpu),
        *_clock(check),
        *_environment(check.facts),
    ):
        yield Problem(what=what, rank=check.rank, remedy=remedy, severity=severity, host=check.host)


_Found = Iterator[tuple[str, str, str]]


def _binding(facts: dict[str, Any], host: HostRecord | None, gpu: dict[str, Any] | None) -> _Found:
    """A rank that is bound to one NUMA node should be bound to its device's node."""
    node = gpu.get("numa_node") if gpu else None
    nodes = facts.get("numa_nodes")
    several = host is not None and len(host.nodes) > 1
    only = as_number(str(nodes))
    if several and node is not None and only is not None and only != node:
        yield (
            f"bound to the processors of NUMA node {nodes}, its device is on node {node}",
            f"numactl --cpunodebind={node} --membind={node}, or let the scheduler bind by device",
            ERROR,
        )
    quota, threads = facts.get("cgroup_cores"), facts.get("flags.threads")
    if quota is not None and threads is not None and quota < threads:
        yield (
            f"its cgroup gives {quota:g} cores for {threads} threads",
            f"ask for {threads} cores a rank, or set threads={max(1, int(quota))}",
            WARNING,
        )


def _limits(facts: dict[str, Any], host: HostRecord | None) -> _Found:
    shared = facts.get("shared_memory_bytes")
    if shared is not None and shared < SHARED_MEMORY_BYTES:
        yield (
            f"{format_bytes(shared)} of shared memory (/dev/shm)",
            "docker run --shm-size=8g (or --ipc=host): loaders and NCCL's SHM transport need it",
            WARNING,
        )
    files = facts.get("limit.open_files")
    if files is not None and files < OPEN_FILES:
        yield f"at most {files} open files", f"ulimit -n {OPEN_FILES * 16}", WARNING
    locked = facts.get("limit.locked_memory_bytes")
    infiniband = host is not None and any(nic["kind"] == "infiniband" for nic in host.nics)
    if infiniband and locked is not None and locked < LOCKED_MEMORY_BYTES:
        yield (
            f"at most {format_bytes(locked)} of locked memory, and RDMA needs to lock its buffers",
            "ulimit -l unlimited (limits.conf, or LimitMEMLOCK=infinity for the scheduler's daemon)",
            ERROR,
        )


def _iommu(facts: dict[str, Any], host: HostRecord | None, gpu: dict[str, Any] | None) -> _Found:
    """ACS sends traffic between devices through the root complex (NCCL's troubleshooting guide, PCI ACS)."""
    if gpu is None or facts.get("virtual_machine"):
        return
    if host is not None and host.acs_bridges:
        yield (
            f"ACS is on in {host.acs_bridges} PCI bridges: peer-to-peer copies go through the processor",
            "switch ACS off in the firmware, or with setpci on each bridge",
            WARNING,
        )


def _clock(check: RankCheck) -> _Found:
    if abs(check.clock_offset_ns) > SKEW_NS + check.clock_bound_ns:
        yield (
            f"its wall clock is {check.clock_offset_ns / 1e6:+.0f} ms off rank 0's",
            "run chrony or ntpd on every host",
            WARNING,
        )


def _environment(facts: dict[str, Any]) -> _Found:
    if facts.get("env.NVIDIA_TF32_OVERRIDE") is not None:
        yield (
            f"NVIDIA_TF32_OVERRIDE={facts['env.NVIDIA_TF32_OVERRIDE']} overrules every TF32 switch in the code",
            "unset it, and set torch.backends.*.allow_tf32",
            WARNING,
        )
    if str(facts.get("env.CUDA_LAUNCH_BLOCKING", "0")) not in ("", "0"):
        yield "CUDA_LAUNCH_BLOCKING makes every launch wait", "unset it", ERROR
    if _logs_collectives(facts):
        yield (
            f"NCCL_DEBUG={facts['env.NCCL_DEBUG']} with NCCL_DEBUG_SUBSYS={facts.get('env.NCCL_DEBUG_SUBSYS')} writes "
            "while it measures",
            "unset both: NCCL's log of its start is recorded anyway",
            WARNING,
        )
    if str(facts.get("env.NCCL_P2P_DISABLE", "0")) == "1":
        yield "NCCL_P2P_DISABLE=1 sends traffic between devices through host memory", "unset it", WARNING
    if str(facts.get("env.NCCL_IB_DISABLE", "0")) == "1":
        yield "NCCL_IB_DISABLE=1 sends traffic between hosts over TCP", "unset it", WARNING


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
                what=f"{worst:.3g} Gbit/s to {'rank' if len(its) == 1 else 'ranks'} {peers}, "
                f"the median pair {'on one host' if same_host else 'between hosts'} has {usual:.3g}",
                rank=rank,
                remedy="look at the link that these pairs share: PCIe width, NVLink, cable, switch port",
                severity=WARNING,
            )


def _by_rank(slow: Iterable[PairBandwidth]) -> Iterator[tuple[int, list[PairBandwidth]]]:
    """Each slow pair once, under the rank that has most of them."""
    left = list(slow)
    while left:
        counts: dict[int, int] = {}
        for pair in left:
            for rank in (pair.first, pair.second):
                counts[rank] = counts.get(rank, 0) + 1
        rank = max(counts, key=lambda r: (counts[r], r))
        its = [p for p in left if rank in (p.first, p.second)]
        left = [p for p in left if p not in its]
        yield rank, its
