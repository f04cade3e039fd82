"""The simulated device, with a host's clock that began at some time."""

from __future__ import annotations

from scaling.worker.accelerator.clock import use_clock
from scaling_simulator.accelerator import SimulatedAccelerator


class SimDevice(SimulatedAccelerator):
    """One simulated device on its default stream; all host times of this process are then the simulated host's."""

    def __init__(self, index: int, origin_ns: int) -> None:
        """`origin_ns`: what the host's clock showed when the simulation began."""
        super().__init__(index)
        self._origin_ns = origin_ns
        use_clock(self.now_ns, virtual=True)

    def now_ns(self) -> int:
        """The simulated host's clock."""
        return int(self._clock_ns()) + self._origin_ns
