"""Rules over what NVML reports for each GPU, at rest and under the load of the checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scaling.analysis.results.doctor import ERROR, WARNING, Problem
from scaling.hardware.host import distance
from scaling.hardware.nvml import REASONS
from scaling.hardware.telemetry import HostRecord

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
        rank = rank_of.get(index)
        load = [s.gpus[index] for s in host.samples if index < len(s.gpus)]
        busy = [s for s in load if (s.get("utilisation_percent") or 0) >= BUSY_PERCENT]
        found = (*_state(gpu), *_errors(load), *_pcie(gpu, busy), *_clocks(gpu, busy), *_links(gpu, links))
        for what, remedy, severity in found:
            yield Problem(
                what=f"{_name(gpu)}: {what}", rank=rank, remedy=remedy, severity=severity, host=host.host
            )
        yield from _nic(host, gpu, rank)


_Found = Iterator[tuple[str, str, str]]


def _state(gpu: dict[str, Any]) -> _Found:
    lost = gpu.get("lost")
    if lost and "permission" not in lost.lower():  # on a shared host, other users' devices cannot be opened
        yield (
            f"NVML lists it and cannot open it ({lost})",
            "look for its Xid in dmesg (79: it fell off the bus), then reset it or reboot the host",
            ERROR,
        )
    if gpu.get("persistence") is False:
        yield (
            "persistence mode is off, so the driver unloads between programs and clocks start cold",
            "nvidia-smi -pm 1, or run nvidia-persistenced",
            WARNING,
        )
    if gpu.get("mig"):
        yield (
            "MIG mode is on: a rank gets a slice of the device, and slices have no peer-to-peer access",
            "nvidia-smi -mig 0, or ask the scheduler for whole devices",
            WARNING,
        )
    if gpu.get("ecc") is not None and gpu["ecc"] != gpu.get("ecc_pending"):
        yield "an ECC change waits for a reboot", "reboot the host, or undo it with nvidia-smi -e", WARNING
    if gpu.get("remap_failed"):
        yield "a row could not be remapped: its memory is failing", "take the device out of service", ERROR
    limit, default = gpu.get("power_limit_mw"), gpu.get("power_default_mw")
    if limit and default and limit < default:
        yield (
            f"the power limit is {limit / 1000:.0f} W of {default / 1000:.0f} W",
            f"nvidia-smi -pl {default / 1000:.0f}, or expect lower clocks",
            WARNING,
        )
    application, highest = gpu.get("sm_application_mhz"), gpu.get("sm_max_mhz")
    # A card's default application clock is no limit: a T4's is 585 MHz, and it runs at up to 1590 MHz.
    chosen = application != gpu.get("sm_application_default_mhz")
    if application and highest and chosen and application < 0.6 * highest:
        yield (
            f"application clocks hold it to {application} MHz of {highest} MHz",
            "nvidia-smi -rac",
            WARNING,
        )


def _errors(load: Sequence[dict[str, Any]]) -> _Found:
    worst = max((s.get("ecc_uncorrected") or 0 for s in load), default=0)
    if worst:
        yield (
            f"{worst} uncorrected ECC errors",
            "drain the host and reset the device; replace it if they return",
            ERROR,
        )
    xids = sorted({s["xid"] for s in load if s.get("xid") is not None})
    if xids:
        yield f"Xid {', '.join(map(str, xids))}", "look the Xid up in NVIDIA's list and in dmesg", ERROR
    others = max((s.get("processes") or 0 for s in load), default=0)
    if others > 1:
        yield (
            f"{others} processes use it at once",
            "give each rank a device of its own, and end other programs that use it",
            WARNING,
        )


def _pcie(gpu: dict[str, Any], busy: Sequence[dict[str, Any]]) -> _Found:
    """Checked under load, because an idle link may lower its generation to save power (but not its width)."""
    for what, highest, lesser in (
        ("width", "pcie_max_width", "x"),
        ("generation", "pcie_max_generation", "gen "),
    ):
        most = gpu.get(highest)
        seen = [s[f"pcie_{what}"] for s in busy if s.get(f"pcie_{what}") is not None]
        if most and seen and max(seen) < most:
            yield (
                f"its PCIe link runs at {lesser}{max(seen)} of {lesser}{most} under load",
                "reseat the card or its riser, and look at the slot's lanes and the firmware's PCIe settings",
                ERROR if what == "width" else WARNING,
            )


def _clocks(gpu: dict[str, Any], busy: Sequence[dict[str, Any]]) -> _Found:
    known = [s for s in busy if s.get("reasons") is not None]
    if not known:
        return
    clocks = [s["sm_mhz"] for s in known if s.get("sm_mhz")]
    at = f" at {min(clocks)} of {gpu['sm_max_mhz']} MHz" if clocks and gpu.get("sm_max_mhz") else ""
    for name, remedy in _SLOWDOWNS.items():
        share = sum(bool(s["reasons"] & REASONS[name]) for s in known) / len(known)
        if share > THROTTLED_SHARE:
            yield f"throttled ({name}) in {share:.0%} of the samples under load{at}", remedy, ERROR
            return  # one cause sets several bits


def _links(gpu: dict[str, Any], ups: Sequence[int]) -> _Found:
    """A link counts as down if another GPU of the host has more links up: boards leave some unconnected on purpose."""
    up = _up(gpu)
    if gpu.get("nvlinks") and up < max(ups):
        down = [str(i) for i, state in enumerate(gpu["nvlinks"]) if not state]
        yield (
            f"{up} of {max(ups)} NVLinks are up (down: {', '.join(down)})",
            "nvidia-smi nvlink -s; look at the bridge or the fabric manager, then reset the device",
            ERROR,
        )


def _up(gpu: dict[str, Any]) -> int:
    return sum(bool(state) for state in gpu.get("nvlinks") or ())


def _nic(host: HostRecord, gpu: dict[str, Any], rank: int | None) -> Iterator[Problem]:
    """The nearest InfiniBand card of a GPU should not be on another NUMA node."""
    cards = [nic for nic in host.nics if nic["kind"] == "infiniband"]
    path, node = gpu.get("pci_path") or [], gpu.get("numa_node")
    distances = {distance(path, nic["pci"], nodes=(node, nic.get("numa_node"))) for nic in cards}
    if distances == {"SYS"}:
        yield Problem(
            what=f"{_name(gpu)}: every network card is on another NUMA node (SYS)",
            rank=rank,
            remedy="use the devices beside the cards, or set NCCL_IB_HCA and NCCL_CROSS_NIC by hand",
            severity=WARNING,
            host=host.host,
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


def _name(gpu: dict[str, Any]) -> str:
    return f"GPU {gpu['index']}"
