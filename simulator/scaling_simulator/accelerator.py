"""The simulated accelerator as the device of a rank.

On its virtual clock, time is what the device's model says, also for the host: all stamps of this process come from
that clock. Each rank has its own; where ranks wait for one another on the host, the clocks move to the latest of them,
as time does while one waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from scaling.settings.topology import SIMULATED, SimulatedDevice
from scaling.worker.accelerator.clock import use_clock
from scaling.worker.accelerator.devices import TorchAccelerator
from scaling_simulator.device import configure, host_spend_us, line, load, set_link, set_wire

_GIGA, _TERA = 1e9, 1e12
_asked = {"arithmetic": True}
"""Whether kernels compute, as `prepare` was told; a program that loaded the device itself has them compute."""


def prepare(settings: SimulatedDevice, devices: int) -> None:
    """Register the device with torch and set how it behaves, before anything runs on it.

    BuildError where it is not built and cannot be: the launcher builds it before ranks start.
    """
    load()
    _asked["arithmetic"] = settings.arithmetic
    virtual = settings.clock == "virtual"
    configure(
        devices=devices,
        virtual_clock=virtual,
        null_work=settings.null_work,
        math=settings.arithmetic,
        launch_us=settings.launch_us,
        kernel_us=settings.kernel_us,
        flops=settings.tflops * _TERA,
        memory_bytes_s=settings.memory_gb_s * _GIGA,
        host_bytes_s=settings.host_gb_s * _GIGA,
        connections=settings.connections,
        wait_us=settings.wait_us,
        slowdown=settings.slowdown,
        capacity_bytes=settings.capacity_bytes,
    )
    set_link(line(settings.link_us, settings.link_gb_s))
    set_wire("*")  # ranks are on one host: each has one link, whatever groups it is in


class SimulatedAccelerator(TorchAccelerator):
    """One simulated device. `prepare` comes first, or a program that loaded the device itself."""

    def __init__(self, index: int) -> None:
        super().__init__(SIMULATED, index)
        self._library = load()
        self._meetings: dict[str, Any] = {}
        """Of the ranks of each control group that had a barrier."""
        self._clock_ns: Any = self._module.clock_ns
        before = self._clock_ns()
        time.sleep(1e-4)
        self.virtual = bool(self._clock_ns() == before)  # only a simulated clock stands still
        if self.virtual:
            use_clock(self._clock_ns, virtual=True, sleep_s=lambda seconds: host_spend_us(seconds * 1e6))

    def stall(self, seconds: float) -> None:
        """A kernel that takes so long, on the current stream."""
        self._module.sleep_us(seconds * 1e6)

    def spin(self, seconds: float) -> None:
        """The device has a kernel that takes as long as one asks."""
        self.stall(seconds)

    @contextlib.contextmanager
    def only_timed(self) -> Iterator[None]:
        """Large kernels leave zeros."""
        self.synchronize()
        configure(math=False)
        try:
            yield
            self.synchronize()
        finally:
            configure(math=_asked["arithmetic"])

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """The host rests: what ends next on a wire does not depend on it."""
        self._library.host_rests(True)
        try:
            yield
        finally:
            self._library.host_rests(False)

    def barrier(self, group: Any) -> None:
        """Wait for the ranks of a control group; on the virtual clock all go on at the time of the last one.

        They meet in the device's own memory: whoever comes last has them all count as at work again, so nothing ends on
        a wire before each of them has said what it does next.
        """
        if not self.virtual:
            super().barrier(group)
            return
        backend = group._get_backend(torch.device("cpu"))  # noqa: SLF001
        if group.group_name not in self._meetings:
            store = dist.distributed_c10d._get_default_store()  # noqa: SLF001
            name = f"meeting/{group.group_name}"
            rank, size = dist.get_rank(group), dist.get_world_size(group)
            self._meetings[group.group_name] = self._library.find_meeting(store, name, rank, size)
        self._meetings[group.group_name].meet(backend.options._timeout.total_seconds())  # noqa: SLF001
