"""One process as one rank of a world: it does what this rank does, and its peers are taken to do alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from scaling_simulator.device import configure, load, set_link, set_wire, unlink
from scaling_simulator.simulation import Chip, KernelTimes, Physics, Simulation


def begin(asked: Simulation) -> None:
    """Make this process the asked rank, on the virtual clock. Kernels take their time and compute nothing large."""
    load()
    configure(alike=True, devices=1)
    equip(asked)
    torch.accelerator.set_device_index(0)
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("simccl", store=store, rank=asked.rank, world_size=asked.mesh.size)


def equip(asked: Simulation) -> None:
    """Give the device its rates, memory and links."""
    configure(
        virtual_clock=True,
        math=False,
        capacity_bytes=asked.capacity_bytes,
        host_bytes_s=asked.host_bytes_s,
        launch_us=asked.launch_us,
        **_rates(asked.chip),
    )
    use_times(asked.kernels)
    use(asked.physics[0])


def use(physics: Physics) -> None:
    """From here on links, ranks and kernels are these. Nothing may run meanwhile."""
    torch.accelerator.synchronize()
    configure(stretch=physics.stretch, slowdown=physics.slowdown, spread=physics.spread)
    unlink()
    set_wire(*physics.wires)
    for curve in physics.links:
        set_link([(point[0], point[1]) for point in curve.points], curve.group, curve.kind)


def use_times(kernels: KernelTimes) -> None:
    """Take kernels' times as measured, and scale them from the device that was measured to this one."""
    rates = dict.fromkeys(_RATES, 0.0) if kernels.chip is None else _rates(kernels.chip)
    load().set_times(kernels.us, kernels.factors, *(rates[name] for name in _RATES))


_RATES = ("kernel_us", "flops", "flops32", "memory_bytes_s")
"""In the order of the library's arguments."""


def _rates(chip: Chip) -> dict[str, Any]:
    fields = dataclasses.asdict(chip)
    return {
        "flops": fields["flop_s"],
        "flops32": fields["flop_s_fp32"],
        "memory_bytes_s": fields["memory_bytes_s"],
        "kernel_us": fields["kernel_us"],
    }
