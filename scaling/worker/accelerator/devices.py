"""The device of a rank: the CPU or one CUDA device, with all their differences except clocks."""

from __future__ import annotations

import contextlib
import gc
import resource
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils._pytree import tree_map_only

from scaling.spec.run import Spec
from scaling.spec.topology import MULTI_RANK
from scaling.worker.accelerator import memory
from scaling.worker.accelerator.clock import Clock, CudaClock, Event, HostClock


class Device:
    """The CPU: data needs no transfer, and work is done when a call returns."""

    type = "cpu"

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.clock: Clock = HostClock()

    def stage(self, batch: Any) -> Any:
        """Prepare a batch on the host, as a loader does."""
        return batch

    def load(self, batch: Any) -> Any:
        """Bring the batch to the module's device, in the input phase of a step."""
        return batch

    def synchronize(self) -> None:
        """Wait until all issued work is done."""

    def release_memory(self) -> None:
        """Return cached memory, as after an attempt that ran out of memory."""
        memory.collect()

    def peak_bytes(self) -> int:
        """Largest resident memory of this process since `reset_peak`."""
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def held_bytes(self) -> int | None:
        """Memory that tensors hold on the device; None where that is the process' memory."""
        return None

    def foreign_bytes(self) -> int | None:
        """Device memory outside torch's allocator, mainly communicators; None without a device."""
        return None

    def reset_peak(self) -> None:
        """Count the peak from now on, if the kernel allows it (proc(5), clear_refs)."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def formats(self) -> tuple[str, ...]:
        """Number formats of the device, the reference first."""
        return ("fp64", "fp32", "bf16", "fp16")

    def random_state(self) -> tuple[torch.Tensor, ...]:
        """State of every default generator that a step may draw from; `set_random_state` restores it."""
        return (torch.get_rng_state(),)

    def set_random_state(self, states: tuple[torch.Tensor, ...]) -> None:
        """Restore what `random_state` returned."""
        torch.set_rng_state(states[0])

    def peer_access(self, local_rank: int) -> bool | None:  # noqa: ARG002
        """Whether this device can access another one's memory directly; None where that does not apply."""
        return None

    def facts(self) -> dict[str, Any]:
        """Facts of the device and its libraries; null where there are none."""
        names = (
            "cuda",
            "nccl",
            "device_name",
            "device_memory_bytes",
            "compute_capability",
            "device_uuid",
            "device_pci",
        )
        return dict.fromkeys(names)


class CudaDevice(Device):
    """One CUDA device, on its default stream.

    It has to be the default stream, since Gloo orders its copies of CUDA tensors against that stream only.
    """

    type = "cuda"

    def __init__(self, index: int) -> None:
        torch.cuda.set_device(index)
        self.torch_device = torch.device("cuda", index)
        self.clock = CudaClock(_timing_event, self.synchronize)

    def stage(self, batch: Any) -> Any:
        """Page-locked, so that copies to the device need not wait for the host. Tensors in lists, tuples and dicts."""
        return tree_map_only(torch.Tensor, lambda t: t.detach().pin_memory(), batch)

    def load(self, batch: Any) -> Any:
        """Copy on the current stream without waiting, as a training loop does."""
        return tree_map_only(torch.Tensor, lambda t: t.to(self.torch_device, non_blocking=True), batch)

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self.torch_device)

    def release_memory(self) -> None:
        """Return the caching allocator's unused blocks."""
        gc.collect()
        torch.cuda.empty_cache()

    def peak_bytes(self) -> int:
        """Largest memory of tensors, without the allocator's cache and NCCL's buffers."""
        return torch.cuda.max_memory_allocated(self.torch_device)

    def held_bytes(self) -> int:
        """Memory of tensors, without the allocator's cache."""
        return torch.cuda.memory_allocated(self.torch_device)

    def foreign_bytes(self) -> int:
        """Memory in use on the device by any process, less what the caching allocator holds."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free - torch.cuda.memory_reserved(self.torch_device)

    def reset_peak(self) -> None:
        """Count the peak from what is allocated now."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def formats(self) -> tuple[str, ...]:
        """Before compute capability 8.0, bf16 is emulated and TF32 is silently fp32, so neither is listed."""
        ampere = torch.cuda.get_device_capability(self.torch_device) >= (8, 0)
        return ("fp64", "fp32", "tf32", "bf16", "fp16") if ampere else ("fp64", "fp32", "fp16")

    def random_state(self) -> tuple[torch.Tensor, ...]:
        """State of the host's and the device's generators, since dropout draws on the tensors' device."""
        return (*super().random_state(), torch.cuda.get_rng_state(self.torch_device))

    def set_random_state(self, states: tuple[torch.Tensor, ...]) -> None:
        """Restore what `random_state` returned."""
        super().set_random_state(states)
        torch.cuda.set_rng_state(states[1], self.torch_device)

    def peer_access(self, local_rank: int) -> bool | None:
        """The driver's answer for the device of that local rank."""
        mine, count = self.torch_device.index, torch.cuda.device_count()
        other = local_rank % count
        return None if other == mine else torch.cuda.can_device_access_peer(mine, other)

    def facts(self) -> dict[str, Any]:
        """Versions, name, memory and compute capability."""
        properties = torch.cuda.get_device_properties(self.torch_device)
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None  # type: ignore[no-untyped-call]
        return {
            "cuda": torch.version.cuda,
            "nccl": None if nccl is None else ".".join(map(str, nccl)),
            "device_name": properties.name,
            "device_memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "device_uuid": str(properties.uuid),
            "device_pci": _pci_address(properties),
        }


def _pci_address(properties: Any) -> str | None:
    """domain:bus:device.function as in sysfs; None if torch is too old to tell."""
    try:
        place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    except AttributeError:
        return None
    return "{:04x}:{:02x}:{:02x}.0".format(*place)


def _timing_event() -> Event:
    return cast("Event", torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


MULTI_RANK_NCCL = (2, 30)
"""From this version on, NCCL can join ranks that share a device."""


def open_device(spec: Spec, *, rank: int, local_rank: int) -> Device:
    """The rank's device: cuda:LOCAL_RANK, modulo the count where ranks share devices (Gloo, or a new NCCL if allowed).

    RuntimeError where there is none that the run can use.
    """
    if spec.topology.device == "cpu":
        return Device()
    # Emulated hosts each number their ranks from 0, but share this machine.
    place = rank if spec.launcher == "emulated" else local_rank
    count = torch.cuda.device_count()
    if count == 0:
        raise RuntimeError("no CUDA device is visible to this rank; use topology.device=cpu")
    if spec.topology.backend == "nccl" and place >= count:
        _may_share(spec, place, count)
    return CudaDevice(place % count)


def _may_share(spec: Spec, place: int, count: int) -> None:
    alone = f"local rank {place} has no CUDA device of its own ({count} visible), which NCCL needs"
    otherwise = "use topology.backend=gloo or fewer ranks a host"
    if spec.env.get(MULTI_RANK) != "1":
        raise RuntimeError(f"{alone}; {otherwise}")
    found = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    if found < MULTI_RANK_NCCL:
        text, least = (".".join(map(str, version)) for version in (found, MULTI_RANK_NCCL))
        raise RuntimeError(f"{alone} before {least}, and this is {text}; {otherwise}")


def require(device: Device, precision: str) -> None:
    """RuntimeError where a device lacks a number format; it would silently compute in another one."""
    if precision not in device.formats():
        has = ", ".join(name for name in device.formats() if name != "fp64")
        name = device.facts()["device_name"] or device.type
        raise RuntimeError(f"precision={precision}: {name} does not have it; it has {has}")
