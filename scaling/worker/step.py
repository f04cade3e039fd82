"""One optimizer step, bare of everything or with phase stamps. The same work in the same order either way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from scaling.worker.clock import now_ns
from scaling.worker.inject import Faults
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
        batches: list[tuple[Any, Any]],
        accumulation: int,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]],
        faults: Faults,
    ) -> None:
        self.module = module
        self._loss = workload.loss
        self._optimizer = optimizer
        self._batches = batches
        self._accumulation = accumulation
        self._autocast = autocast
        self._faults = faults
        self._next = 0
        self.forward_end_ns = 0
        """Stamp of the last micro-step's module call: where DDP's ready times count from."""

    def plain(self) -> tuple[int, int]:
        """A step with two stamps: begin and end, ns."""
        begin = now_ns()
        for last in self._micro_steps():
            with self._sync(last):
                inputs, targets = self._fetch()
                self._forward(inputs, targets).backward()  # type: ignore[no-untyped-call]
        self._optimize()
        self._faults.host()
        return begin, now_ns()

    def stamped(self) -> tuple[int, ...]:
        """A step with all of records.STEP_FIELDS."""
        begin = now_ns()
        input_ns = forward_ns = backward_ns = 0
        compute_end = [0]
        backward_end = begin
        for last in self._micro_steps():
            with self._sync(last):
                fetch_begin = now_ns()
                inputs, targets = self._fetch()
                forward_begin = now_ns()
                loss = self._forward(inputs, targets)
                if last:
                    _at_end_of_backward(loss, compute_end)
                backward_begin = now_ns()
                loss.backward()  # type: ignore[no-untyped-call]
                backward_end = now_ns()
            input_ns += forward_begin - fetch_begin
            forward_ns += backward_begin - forward_begin
            backward_ns += backward_end - backward_begin
        optimizer_begin = now_ns()
        self._optimize()
        optimizer_end = now_ns()
        self._faults.host()
        return (
            begin,
            now_ns(),
            input_ns,
            forward_ns,
            backward_ns,
            optimizer_end - optimizer_begin,
            compute_end[0],
            backward_end,
        )

    def local(self) -> None:
        """A step that reduces nothing, whatever the module: to see whether it fits in memory."""
        with self._sync(last=False):
            inputs, targets = self._fetch()
            self._forward(inputs, targets).backward()  # type: ignore[no-untyped-call]
        self._optimizer.zero_grad(set_to_none=True)

    def _micro_steps(self) -> list[bool]:
        return [i == self._accumulation - 1 for i in range(self._accumulation)]

    def _sync(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        if last or self._faults.wrong_no_sync or not isinstance(self.module, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.module.no_sync()

    def _fetch(self) -> tuple[Any, Any]:
        self._faults.input()
        self._next = (self._next + 1) % len(self._batches)
        return self._batches[self._next]

    def _forward(self, inputs: Any, targets: Any) -> torch.Tensor:
        self._faults.compute()
        with self._autocast():
            outputs = self.module(inputs)
            self.forward_end_ns = now_ns()
            return self._loss(outputs, targets)

    def _optimize(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def _at_end_of_backward(loss: torch.Tensor, cell: list[int]) -> None:
    """Stamp `cell` when backward's own compute is done, before DDP waits for its last bucket.

    Queued from the first node of backward, the callback runs ahead of the one with which DDP,
    once its last bucket is ready, waits for communication.
    """

    def stamp() -> None:
        cell[0] = now_ns()

    loss.register_hook(lambda _grad: _ENGINE.queue_callback(stamp))  # type: ignore[no-untyped-call]
