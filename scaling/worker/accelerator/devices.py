"""The devices of ranks: any accelerator that torch knows, opened for a rank, and refused where it lacks something.

torch.accelerator has streams, devices and waiting for all of them. Memory, random states and timing events are in the
module of the device's type, which `torch.get_device_module` gives. CUDA, ROCm, XPU and PrivateUse1 share its names.
What CUDA alone has is in `cuda`.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import time
from typing import Any

import torch

from scaling import resources
from scaling.records.checkup import DOCTOR
from scaling.settings.run import Spec
from scaling.settings.topology import CPU, MULTI_RANK, MULTI_RANK_NCCL, SIMULATED, SimulatedDevice
from scaling.worker.accelerator import cuda, memory
from scaling.worker.accelerator.accelerator import Accelerator, Cpu
from scaling.worker.accelerator.clock import EventClock
from scaling.worker.parallel.torch_private import tree_map_only

_SPIN_ROWS, _SPIN_MOST = 2**17, 2**24
"""Rows of the kernel by which `spin` learns how long a row takes, and the most that it sums."""


class TorchAccelerator(Accelerator):
    """One device, on its default stream.

    It has to be the default stream, since Gloo orders its copies of device tensors against that stream only.
    """

    def __init__(self, kind: str, index: int) -> None:
        """`kind`: the type of the device, as torch names it."""
        self.type, self._is_cuda = kind, kind == cuda.TYPE
        self._row_s = 0.0
        self._module: Any = torch.get_device_module(kind)
        self._module.set_device(index)
        self.torch_device = torch.device(kind, index)
        # torch.cuda.Event looks up the stream in Python, and takes the host three times as long.
        event: Any = torch.Event
        self.clock = EventClock(
            functools.partial(event, kind, enable_timing=True),
            self.synchronize,
            getattr(self._module, "is_current_stream_capturing", None),
        )

    def stage(self, batch: Any) -> Any:
        """Page-locked, so that copies to the device need not wait for the host. Tensors in lists, tuples and dicts."""
        return tree_map_only(torch.Tensor, lambda t: t.detach().pin_memory(), batch)

    def load(self, batch: Any) -> Any:
        """Copy on the current stream without waiting, as a training loop does."""
        return tree_map_only(torch.Tensor, lambda t: t.to(self.torch_device, non_blocking=True), batch)

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        self._module.synchronize(self.torch_device)

    def spin(self, seconds: float) -> None:
        """A cumulative sum down two columns of int64: a thread for each goes from row to row.

        CUDA has none of floats where a training asks for deterministic algorithms.
        """
        ones = functools.partial(torch.ones, dtype=torch.int64, device=self.torch_device)
        if self._row_s == 0.0:
            took = []
            for _ in range(2):  # the first one also loads the kernel
                self.synchronize()
                begin = time.perf_counter()
                ones(_SPIN_ROWS, 2).cumsum(0)
                self.synchronize()
                took.append(time.perf_counter() - begin)
            self._row_s = took[-1] / _SPIN_ROWS
        rows = min(_SPIN_MOST, math.ceil(seconds / self._row_s))
        ones(rows, 2).cumsum(0)

    def release_memory(self) -> None:
        """Return the caching allocator's unused blocks."""
        gc.collect()
        self._module.empty_cache()

    def peak_bytes(self) -> int:
        """Largest memory of tensors, without the allocator's cache and the communicators' buffers."""
        return int(self._module.max_memory_allocated(self.torch_device))

    def held_bytes(self) -> int:
        """Memory of tensors, without the allocator's cache."""
        return int(self._module.memory_allocated(self.torch_device))

    def foreign_bytes(self) -> int:
        """Memory in use on the device by any process, less what the caching allocator holds."""
        free, total = self._module.mem_get_info(self.torch_device)
        return int(total - free - self._module.memory_reserved(self.torch_device))

    def reset_peak(self) -> None:
        """Count the peak from what is allocated now."""
        self._module.reset_peak_memory_stats(self.torch_device)

    def limit(self, limit: int | None, *, margin: float = 0.0) -> memory.Limit:
        """A limit of torch's allocator."""
        return memory.DeviceLimit(limit, self._module, self.torch_device, margin)

    def formats(self) -> tuple[str, ...]:
        """What the type of device has."""
        return cuda.formats(self.torch_device) if self._is_cuda else super().formats()

    def random_state(self) -> tuple[torch.Tensor, ...]:
        """State of the host's and the device's generators, since dropout draws on the tensors' device."""
        return (*super().random_state(), self._module.get_rng_state(self.torch_device))

    def set_random_state(self, states: tuple[torch.Tensor, ...]) -> None:
        super().set_random_state(states)
        self._module.set_rng_state(states[1], self.torch_device)

    def peer_access(self, local_rank: int) -> bool | None:
        """The driver's answer for the device of that local rank."""
        return cuda.peer_access(self.torch_device.index, local_rank) if self._is_cuda else None

    def facts(self) -> dict[str, Any]:
        """Versions, name and memory."""
        if self._is_cuda:
            return super().facts() | cuda.facts(self.torch_device)
        return super().facts() | {
            "device_name": self._module.get_device_name(self.torch_device),
            "device_memory_bytes": int(self._module.mem_get_info(self.torch_device)[1]),
        }


def open_device(spec: Spec, *, rank: int, local_rank: int) -> Accelerator:
    """The rank's device: LOCAL_RANK's, modulo the count where ranks share devices (Gloo, or a new NCCL if allowed).

    RuntimeError where there is none that the run can use.
    """
    topology = spec.topology
    if topology.device == CPU:
        return Cpu()
    # Emulated hosts each number their ranks from 0, but share this machine.
    place = rank if spec.launcher == "emulated" else local_rank
    if topology.is_simulated:
        computes = topology.simulated.arithmetic or spec.task == DOCTOR  # it compares what devices compute
        settings = dataclasses.replace(topology.simulated, arithmetic=computes)
        return _simulated(place, settings, devices=max(topology.ranks_per_host, place + 1))
    module: Any = torch.get_device_module(topology.device)
    count = module.device_count()
    if count == 0:
        raise RuntimeError(f"no {topology.device_name} is visible to this rank; use topology.device=cpu")
    if topology.on_device and place >= count:
        _may_share(spec, place, count)
    return TorchAccelerator(topology.device, place % count)


def device_of(parameter: torch.Tensor) -> Accelerator:
    """The device on which a parameter of one's own model lies."""
    place = parameter.device
    if place.type == CPU:
        return Cpu()
    index = place.index or 0
    return _simulated(index) if place.type == SIMULATED else TorchAccelerator(place.type, index)


def open_kind(kind: str, settings: SimulatedDevice | None = None) -> Accelerator:
    """The first device of a type, for a program with a single rank."""
    if kind == SIMULATED:
        return _simulated(0, settings or SimulatedDevice(arithmetic=True))
    return Cpu() if kind == CPU else TorchAccelerator(kind, 0)


def _simulated(index: int, settings: SimulatedDevice | None = None, *, devices: int = 1) -> Accelerator:
    """A simulated device, prepared first where `settings` are given. InputError where its package is not installed."""
    resources.require_simulator()
    from scaling_simulator.accelerator import SimulatedAccelerator, prepare  # noqa: PLC0415  (such runs alone need it)

    if settings is not None:
        prepare(settings, devices)
    return SimulatedAccelerator(index)


def _may_share(spec: Spec, place: int, count: int) -> None:
    topology = spec.topology
    who = f"local rank {place} has no {topology.device_name} of its own ({count} visible)"
    alone = f"{who}, which {topology.backend.upper()} needs"
    otherwise = "use topology.backend=gloo or fewer ranks a host"
    if topology.device != cuda.TYPE or spec.env.get(MULTI_RANK) != "1":
        raise RuntimeError(f"{alone}; {otherwise}")
    nccl = cuda.nccl_version()
    if nccl < MULTI_RANK_NCCL:
        text, least = (".".join(map(str, version)) for version in (nccl, MULTI_RANK_NCCL))
        raise RuntimeError(f"{alone} before {least}, and this is {text}; {otherwise}")


def require(device: Accelerator, precision: str) -> None:
    """RuntimeError where a device lacks a number format; it would silently compute in another one."""
    if precision not in device.formats():
        has = ", ".join(name for name in device.formats() if name != "fp64")
        name = device.facts()["device_name"] or device.type
        raise RuntimeError(f"precision={precision}: {name} does not have it; it has {has}")


def random_states() -> list[torch.Tensor]:
    """States of the generators of all visible accelerators."""
    return [module.get_rng_state(device) for module, device in _accelerators()]


def set_random_states(states: list[torch.Tensor]) -> None:
    for (module, device), state in zip(_accelerators(), states, strict=True):
        module.set_rng_state(state, device)


def _accelerators() -> list[tuple[Any, torch.device]]:
    """(module, device) of every visible accelerator; none on a machine that has only CPUs."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return []
    module: Any = torch.get_device_module(device)
    return [(module, torch.device(device.type, index)) for index in range(module.device_count())]
