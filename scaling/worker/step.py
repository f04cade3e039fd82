"""One optimizer step, bare of everything or with phase stamps. The same work in the same order either way.

A step only takes stamps and returns their tokens; durations are made of them after the block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from scaling.worker.clock import now_ns
from scaling.worker.devices import Device
from scaling.worker.inject import Faults
from scaling.worker.precision import Precision
from scaling.worker.workload import Workload

_ENGINE = Variable._execution_engine  # noqa: SLF001  # as FSDP does: the one way to the end of backward's compute


class Loop:
    """The training loop around one module (bare or wrapped) at one batch size."""

    def __init__(
        self,
        *,
        workload: Workload,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        fetch: Callable[[], Any],
        accumulation: int,
        device: Device,
        precision: Precision,
        faults: Faults,
        load: Callable[[Any], Any] | None = None,
    ) -> None:
        """`fetch` gives the next batch, on the host; `load` makes of it what the module takes (None: the device's)."""
        self.module = module
        self._loss = workload.loss
        self._optimizer = optimizer
        self._next = fetch
        self.micro_steps = accumulation
        self._stamp = device.clock.stamp
        self._load = load or device.load
        self._autocast = precision.autocast
        self._scaler = precision.scaler()
        self._faults = faults
        self.stamps = 5 * accumulation + 4
        """How many a stamped step takes."""
        self.forward_end_ns = 0
        """Host time of the last micro-step's module call: where DDP's ready times count from."""

    def plain(self) -> list[int]:
        """A step with two stamps: begin and end."""
        begin = self._stamp()
        for last in self._micro_steps():
            with self._sync(last):
                inputs, targets = self._fetch()
                self._forward(inputs, targets).backward()  # type: ignore[no-untyped-call]
        self._optimize()
        self._faults.host()
        return [begin, self._stamp()]

    def stamped(self) -> list[int]:
        """A step with the stamps that `step_fields` takes."""
        stamp = self._stamp
        stamps = [stamp()]
        compute_end: list[int] = []
        for last in self._micro_steps():
            with self._sync(last):
                stamps.append(stamp())
                inputs, targets = self._fetch()
                stamps.append(stamp())
                loss = self._forward(inputs, targets)
                compute_end.append(0)
                if last or self._faults.wrong_no_sync:
                    _at_end_of_backward(loss, stamp, compute_end)
                stamps.append(stamp())
                loss.backward()  # type: ignore[no-untyped-call]
                stamps.append(stamp())
        stamps.append(stamp())
        self._optimize()
        stamps.append(stamp())
        self._faults.host()
        return [*stamps, stamp(), *compute_end]

    def local(self) -> None:
        """A step that reduces nothing, whatever the module: to see whether it fits in memory."""
        try:
            with self._sync(last=False):
                inputs, targets = self._fetch()
                self._forward(inputs, targets).backward()  # type: ignore[no-untyped-call]
        finally:
            self._optimizer.zero_grad(set_to_none=True)

    def held(self, *, reduce: bool) -> None:
        """A whole step that keeps the gradients allocated, so that they stay where DDP has them: in its buckets.

        Without `reduce` no peer is needed, and it takes the memory of a real step all the same.
        """
        for last in self._micro_steps():
            with self._sync(last and reduce):
                inputs, targets = self._fetch()
                self._forward(inputs, targets).backward()  # type: ignore[no-untyped-call]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=False)

    def _micro_steps(self) -> list[bool]:
        return [i == self.micro_steps - 1 for i in range(self.micro_steps)]

    def _sync(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        if last or self._faults.wrong_no_sync or not isinstance(self.module, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.module.no_sync()

    def _fetch(self) -> Any:
        self._faults.input()
        return self._load(self._next())

    def _forward(self, inputs: Any, targets: Any) -> torch.Tensor:
        self._faults.compute()
        with self._autocast():
            outputs = self.module(inputs)
            self.forward_end_ns = now_ns()
            loss = self._loss(outputs, targets)
        return self._scaler.scale(loss)

    def _optimize(self) -> None:
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)


def step_fields(stamps: Sequence[int]) -> list[int]:
    """records.STEP_FIELDS of a step's stamps, once they are times; a plain step's two stay as they are."""
    if len(stamps) == 2:
        return list(stamps)
    count = (len(stamps) - 4) // 5
    begin, *rest = stamps
    micro_steps, (optimizer_begin, optimizer_end, end), compute_end = (
        rest[: 4 * count],
        rest[4 * count : -count],
        rest[-count:],
    )
    fetch, forward, backward, backward_end = (micro_steps[phase::4] for phase in range(4))
    return [
        begin,
        end,
        sum(forward) - sum(fetch),
        sum(backward) - sum(forward),
        sum(backward_end) - sum(backward),
        optimizer_end - optimizer_begin,
        compute_end[-1],
        backward_end[-1],
        sum(
            done - computed
            for computed, done in zip(compute_end[:-1], backward_end, strict=False)
            if computed
        ),
    ]


def _at_end_of_backward(loss: torch.Tensor, stamp: Callable[[], int], cell: list[int]) -> None:
    """Put a stamp into the last of `cell` when backward's own compute is done, before DDP waits for its last bucket.

    Queued from the first node of backward, the callback runs ahead of the one with which DDP,
    once its last bucket is ready, waits for communication. On CUDA both run in the device's
    autograd thread, after the engine has made the streams that were current when backward() was
    called wait for the leaves, and with those streams current (engine.cpp,
    exec_post_processing). So the stamp is an event on the compute stream behind all of backward's
    kernels, and ahead of DDP's wait, which holds up that stream and not the host.
    """

    def at_end() -> None:
        cell[-1] = stamp()

    loss.register_hook(lambda _grad: _ENGINE.queue_callback(at_end))  # type: ignore[no-untyped-call]
