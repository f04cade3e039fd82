"""One replica of a model that answers requests: no gradients, no peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from scaling.cases import LATENCY, Case
from scaling.worker.clock import now_ns
from scaling.worker.devices import Device
from scaling.worker.precision import DTYPES, Precision
from scaling.worker.workload import Workload

RECOMPILES = 512
"""torch.compile falls back to eager, silently, where a function was compiled for more shapes and types than this."""


class Inference:
    """A request is a batch on the host; it is answered when the device has the outputs.

    Latency: one request at a time, the next begins when the last is answered, host time around
    both. Throughput: requests are handed out without waiting and awaited at the end, as a loaded
    server keeps a device busy.
    """

    fewest: tuple[int, ...] = (1,)
    least = 1

    def __init__(
        self, workload: Workload, device: Device, *, seed: int, load: Callable[[Any], Any] | None = None
    ) -> None:
        """`load` makes of a batch on the host what the module takes (None: the device's)."""
        self._workload = workload
        self._device = device
        self._load = load or device.load
        self._seed = seed
        self._module = workload.module.eval()
        self._call: Callable[[Any], Any] = self._module
        self._compiled: Callable[[Any], Any] | None = None
        self._inputs: Any = None
        self._precision = Precision("fp32", device.type)
        self._dtype = torch.float32

    def open(self, world_size: int) -> None:
        """Replicas know nothing of each other."""

    def bare(self, samples: int) -> None:
        """As any other: there is no wrapper."""

    def settle(self, case: Case) -> None:
        """A request finds what the one before left: nothing."""

    def use(self, case: Case) -> None:
        """Convert the parameters where the case does without autocast; make its batch."""
        self.drop()
        variant = case.variant
        self._precision = Precision(variant.precision, self._device.type)
        self._to(torch.float32 if variant.autocast else DTYPES.get(variant.precision, torch.float32))
        generator = torch.Generator().manual_seed(self._seed)
        inputs, _ = self._workload.make_batch(case.batch, generator)
        self._inputs = self._device.stage(tree_map_only(torch.Tensor, self._cast, inputs))
        self._call = self._compile() if variant.compile else self._module

    def alone(self) -> None:
        """One request."""
        self._answer()

    def together(self) -> None:
        """One request."""
        self._answer()
        self._device.synchronize()

    def run(self, arm: str, steps: int, lead_in: int) -> list[list[int]]:
        """Begin and end of every request (latency), or of all of them (throughput)."""
        for _ in range(lead_in):
            self.together()
        if arm == LATENCY:
            return [self._timed(1) for _ in range(steps)]
        return [self._timed(steps)]

    def drop(self) -> None:
        """The batch; parameters stay."""
        self._inputs = None

    def close(self) -> None:
        """Nothing was opened."""
        self.drop()

    def _timed(self, requests: int) -> list[int]:
        begin = now_ns()
        for _ in range(requests):
            self._answer()
        self._device.synchronize()
        return [begin, now_ns()]

    def _answer(self) -> None:
        with torch.inference_mode(), self._precision.autocast():
            self._call(self._load(self._inputs))

    def _to(self, dtype: torch.dtype) -> None:
        """Values are made up, so what conversion rounds away is no loss."""
        if dtype != self._dtype:
            self._module.to(dtype)
            self._dtype = dtype

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self._dtype) if tensor.is_floating_point() else tensor

    def _compile(self) -> Callable[[Any], Any]:
        if self._compiled is None:
            config = torch._dynamo.config  # noqa: SLF001
            for name in ("recompile_limit", "cache_size_limit"):  # renamed in torch 2.6
                if hasattr(config, name):
                    setattr(config, name, RECOMPILES)
            self._compiled = torch.compile(self._module, dynamic=False)
        return self._compiled
