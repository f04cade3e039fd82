"""Measure one replica of a model that answers requests, without gradients and without peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from scaling.records.format import AnyStepRow, PlainRow
from scaling.spec.cases import LATENCY, Case
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.accelerator.precision import DTYPES, Precision
from scaling.worker.data.workload import Workload
from scaling.worker.session.beat import beat

RECOMPILES = 512
"""Limit on compilations of a function; torch.compile silently falls back to eager beyond it."""


class Inference:
    """A request is a batch on the host. It is answered when the device has the outputs.

    Latency: one request at a time; the next begins when the last is answered, and each is timed by the host.
    Throughput: requests are issued without waiting and awaited at the end, as on a server under load.
    """

    fewest: tuple[int, ...] = (1,)
    least = 1

    def __init__(
        self, workload: Workload, device: Accelerator, *, seed: int, load: Callable[[Any], Any] | None = None
    ) -> None:
        """`load` converts a batch on the host for the module (None: the device's `load`)."""
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
        """Replicas do not communicate: nothing to do."""

    def bare(self, samples: int) -> None:
        """There is no wrapper, so this step is like any other: nothing to do."""

    def settle(self, case: Case) -> None:
        """Requests leave nothing in memory: nothing to do."""

    def use(self, case: Case) -> None:
        """Convert the parameters if the case runs without autocast, and make its batch."""
        self.drop()
        variant = case.variant
        self._precision = Precision(variant.precision, self._device.type)
        self._to(torch.float32 if variant.autocast else DTYPES.get(variant.precision, torch.float32))
        generator = torch.Generator().manual_seed(self._seed)
        inputs, _ = self._workload.make_batch(case.batch, generator)
        self._inputs = self._device.stage(tree_map_only(torch.Tensor, self._cast, inputs))
        self._call = self._compile() if variant.compile else self._module

    def alone(self) -> None:
        """Answer one request, without waiting for it."""
        self._answer()

    def together(self) -> None:
        """Answer one request and wait for it."""
        self._answer()
        self._device.synchronize()

    def run(self, arm: str, steps: int, lead_in: int) -> list[AnyStepRow]:
        """Begin and end of every request (latency), or one row for all of them (throughput)."""
        for _ in range(lead_in):
            self.together()
        if arm == LATENCY:
            return [self._timed(1) for _ in range(steps)]
        return [self._timed(steps)]

    def drop(self) -> None:
        """Release the batch; parameters stay."""
        self._inputs = None

    def close(self) -> None:
        """Release the batch; nothing else was opened."""
        self.drop()

    def _timed(self, requests: int) -> PlainRow:
        begin = now_ns()
        for _ in range(requests):
            self._answer()
        self._device.synchronize()
        return PlainRow(begin, now_ns())

    def _answer(self) -> None:
        with torch.inference_mode(), self._precision.autocast():
            self._call(self._load(self._inputs))
        beat()

    def _to(self, dtype: torch.dtype) -> None:
        """Convert in place: the values are synthetic, so rounding them does no harm."""
        if dtype != self._dtype:
            self._module.to(dtype)
            self._dtype = dtype

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self._dtype) if tensor.is_floating_point() else tensor

    def _compile(self) -> Callable[[Any], Any]:
        if self._compiled is None:
            torch._dynamo.config.recompile_limit = RECOMPILES  # noqa: SLF001
            self._compiled = torch.compile(self._module, dynamic=False)
        return self._compiled
