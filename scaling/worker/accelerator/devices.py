"""Open the device of a rank, and refuse what it lacks."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from scaling import resources
from scaling.records.checkup import DOCTOR
from scaling.settings.run import Spec
from scaling.settings.topology import CPU, MULTI_RANK, MULTI_RANK_NCCL, SIMULATED, SimulatedDevice
from scaling.worker.accelerator import cuda
from scaling.worker.accelerator.accelerator import Accelerator, Cpu
from scaling.worker.accelerator.torch_accelerator import TorchAccelerator


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
