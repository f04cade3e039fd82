"""Where a rank computes: the CPU, or one CUDA device. All that differs between them outside the clocks."""

from __future__ import annotations

import contextlib
import gc
import resource
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils._pytree import tree_map_only

from scaling.fabric import MULTI_RANK
from scaling.spec import Spec
from scaling.worker import memory
from scaling.worker.clock import Clock, CudaClock, Event, HostClock


class Device:
    """The CPU: data is where it is used, work is done when a call returns."""

    type = "cpu"

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.clock: Clock = HostClock()

    def stage(self, batch: Any) -> Any:
        """A batch as the loader leaves it on the host."""
        return batch

    def load(self, batch: Any) -> Any:
        """The batch where the module is; the input phase of a step."""
        return batch

    def synchronize(self) -> None:
        """Wait until all work that was handed out is done."""

    def release_memory(self) -> None:
        """Give back what an attempt that ran out of memory has left in caches."""
        memory.collect()

    def peak_bytes(self) -> int:
        """The most memory that this process has held since `reset_peak`, resident."""
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def held_bytes(self) -> int | None:
        """What tensors hold on the device now; None where that is the process's own memory."""
        return None

    def foreign_bytes(self) -> int | None:
        """Device memory in use of which torch knows nothing, communicators above all; None where there is no device."""
        return None

    def reset_peak(self) -> None:
        """Count the peak from here on, where the kernel lets a process do that (proc(5), clear_refs)."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def formats(self) -> tuple[str, ...]:
        """Number formats that it computes in, the reference first."""
        return ("fp64", "fp32", "bf16", "fp16")

    def random_state(self) -> tuple[torch.Tensor, ...]:
        """Of every generator that a step draws from by default; `set_random_state` puts it back."""
        return (torch.get_rng_state(),)

    def set_random_state(self, states: tuple[torch.Tensor, ...]) -> None:
        """As `random_state` told it."""
        torch.set_rng_state(states[0])

    def peer_access(self, local_rank: int) -> bool | None:  # noqa: ARG002
        """Whether this device can reach another's memory without the host; None where that has no meaning."""
        return None

    def facts(self) -> dict[str, Any]:
        """Of the device and its libraries; null where there are none."""
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

    The default stream it has to be: Gloo, given CUDA tensors, orders its copy back against the
    default stream only.
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
        """Copied on the current stream, without waiting, as a training loop does."""
        return tree_map_only(torch.Tensor, lambda t: t.to(self.torch_device, non_blocking=True), batch)

    def synchronize(self) -> None:
        """All streams of the device."""
        torch.cuda.synchronize(self.torch_device)

    def release_memory(self) -> None:
        """The caching allocator's unused blocks."""
        gc.collect()
        torch.cuda.empty_cache()

    def peak_bytes(self) -> int:
        """The most that tensors have held; the allocator's cache and NCCL's buffers not counted."""
        return torch.cuda.max_memory_allocated(self.torch_device)

    def held_bytes(self) -> int:
        """The allocator's cache not counted."""
        return torch.cuda.memory_allocated(self.torch_device)

    def foreign_bytes(self) -> int:
        """Used on the device, by whomever, less what the caching allocator holds."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free - torch.cuda.memory_reserved(self.torch_device)

    def reset_peak(self) -> None:
        """From what is allocated now."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def formats(self) -> tuple[str, ...]:
        """bf16 and TF32 came with compute capability 8.0; before, they are emulated or silently fp32."""
        ampere = torch.cuda.get_device_capability(self.torch_device) >= (8, 0)
        return ("fp64", "fp32", "tf32", "bf16", "fp16") if ampere else ("fp64", "fp32", "fp16")

    def random_state(self) -> tuple[torch.Tensor, ...]:
        """The host's and the device's: dropout draws where its tensors are."""
        return (*super().random_state(), torch.cuda.get_rng_state(self.torch_device))

    def set_random_state(self, states: tuple[torch.Tensor, ...]) -> None:
        """As `random_state` told it."""
        super().set_random_state(states)
        torch.cuda.set_rng_state(states[1], self.torch_device)

    def peer_access(self, local_rank: int) -> bool | None:
        """As the driver says of the device of that local rank."""
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
    """domain:bus:device.function as sysfs has it; None where torch is too old to tell."""
    try:
        place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    except AttributeError:
        return None
    return "{:04x}:{:02x}:{:02x}.0".format(*place)


def _timing_event() -> Event:
    return cast("Event", torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


MULTI_RANK_NCCL = (2, 30)
"""From here on NCCL can join ranks that share a device."""


def open_device(spec: Spec, *, rank: int, local_rank: int) -> Device:
    """The rank's own: cuda:LOCAL_RANK, wrapping around where ranks share devices (Gloo, or a new NCCL that was told).

    RuntimeError where there is none, or none that the run can use.
    """
    if spec.topology.device == "cpu":
        return Device()
    # Emulated hosts number their ranks from 0 each, but all of them are this machine.
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
    """RuntimeError where a device does not have a number format: what it would do instead is not what was asked for."""
    if precision not in device.formats():
        has = ", ".join(name for name in device.formats() if name != "fp64")
        name = device.facts()["device_name"] or device.type
        raise RuntimeError(f"precision={precision}: {name} does not have it; it has {has}")
