"""One optimizer step, with or without phase stamps. Both do the same work in the same order.

A step only takes stamps and returns their tokens. Durations are computed from them after the block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scaling.records.format import AnyStepRow, PlainRow, StepRow
from scaling.worker.accelerator.accelerator import Accelerator, Precision
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.data.workload import Workload
from scaling.worker.measure.inject import NO_FAULTS, Faults
from scaling.worker.parallel.ddp import accumulating
from scaling.worker.parallel.strategy import BACKWARD, BUFFERS, FORWARD, Behind, Wait
from scaling.worker.parallel.torch_private import ENGINE
from scaling.worker.session.progress import beat

STAMPS_A_MICRO_STEP = 5
"""Begin of fetch, forward and backward, end of backward and of its compute."""


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
        device: Accelerator,
        precision: Precision,
        faults: Faults = NO_FAULTS,
        load: Callable[[Any], Any] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        accumulate: Callable[[bool], contextlib.AbstractContextManager[Any]] | None = None,
    ) -> None:
        """`fetch` returns the next batch, on the host; `load` converts it for the module (None: as the device does).

        `scaler`: that of the precision, where it outlives this loop. `accumulate`: around a micro-step, given whether
        it is the last and so reduces gradients; None: as DDP does, if the module is DDP's.
        """
        self.module = module
        self._accumulate = accumulate or accumulating(module)
        self._loss = workload.loss
        self._optimizer = optimizer
        self._next = fetch
        self.micro_steps = accumulation
        self._stamp = device.clock.stamp
        self._load = load or device.load
        self._autocast = precision.autocast
        self._scaler = scaler or precision.scaler()
        self._faults = faults
        self.stamps = STAMPS_A_MICRO_STEP * accumulation + 4
        """Number of stamps of a stamped step."""
        self.forward_end_ns = 0
        """Host time at which the last micro-step's forward returned. DDP's ready times count from there."""

    def release(self) -> None:
        """Let go of the module, which may be the only one to keep a wrapper and its buckets."""
        self.module = torch.nn.Identity()
        self._accumulate = accumulating(self.module)

    def plain(self) -> list[int]:
        """Run a step with two stamps: begin and end."""
        begin = self._stamp()
        for last in self._micro_steps():
            with self._sync(last):
                inputs, targets = self._fetch()
                self._forward(inputs, targets).backward()  # type: ignore[no-untyped-call]
        self._optimize()
        self._faults.host()
        end = self._stamp()
        beat()
        return [begin, end]

    def stamped(self) -> list[int]:
        """Run a step with the stamps that `step_row` takes."""
        stamp = self._stamp
        compute_end: list[int] = []
        stamps = [stamp()]
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
        stamps.append(stamp())
        beat()
        return [*stamps, *compute_end]

    def weighed(self, held_bytes: Callable[[], int | None]) -> int | None:
        """Run a step as `plain` does. What the largest forward and its batch left in memory, bytes; None: not known."""
        most: int | None = None
        for last in self._micro_steps():
            with self._sync(last):
                before = held_bytes()
                inputs, targets = self._fetch()
                loss = self._forward(inputs, targets)
                after = held_bytes()
                if before is not None and after is not None:
                    most = max(most or 0, after - before)
                loss.backward()  # type: ignore[no-untyped-call]
        self._optimize()
        beat()
        return most

    def local(self) -> None:
        """Run a step that reduces nothing, whatever the module is, to see whether it fits into memory."""
        try:
            with self._sync(last=False):
                inputs, targets = self._fetch()
                self._forward(inputs, targets).backward()  # type: ignore[no-untyped-call]
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        beat()

    def held(self, *, reduce: bool) -> None:
        """Run a whole step and keep the gradients allocated, so that they stay in DDP's buckets.

        Without `reduce` no peer is needed; the step takes as much memory either way.
        """
        for last in self._micro_steps():
            with self._sync(last and reduce):
                inputs, targets = self._fetch()
                self._forward(inputs, targets).backward()  # type: ignore[no-untyped-call]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=False)
        beat()

    def _micro_steps(self) -> list[bool]:
        return [i == self.micro_steps - 1 for i in range(self.micro_steps)]

    def _sync(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        return self._accumulate(last or self._faults.wrong_no_sync)

    def _fetch(self) -> Any:
        self._faults.input()
        return self._load(self._next())

    def _forward(self, inputs: Any, targets: Any) -> torch.Tensor:
        self._faults.compute()
        with self._autocast():
            outputs = self.module(inputs)
            self.forward_end_ns = now_ns()
            loss = self._loss(outputs, targets)
        loss = self._scaler.scale(loss)
        self._faults.backward(loss)
        return loss

    def _optimize(self) -> None:
        self._faults.optimizer()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)


def step_row(stamps: Sequence[int], waits: Sequence[Wait] = (), *, waits_behind: bool = True) -> AnyStepRow:
    """The row of a step, from its stamps as host times, ns; a plain step has two.

    `waits`: where the rank waited for communication. With `waits_behind` it waits after backward's compute as well.
    """
    if len(stamps) == 2:
        return PlainRow(*stamps)
    count = (len(stamps) - 4) // STAMPS_A_MICRO_STEP
    begin, *rest = stamps
    micro_steps, rest = rest[: 4 * count], rest[4 * count :]
    optimizer_begin, optimizer_end, end, *compute_end = rest
    buffers = [wait for wait in waits if wait.phase == BUFFERS]
    fetch, forward, backward, backward_end = (micro_steps[phase::4] for phase in range(4))
    earlier = zip(compute_end[:-1], backward_end, strict=False)
    return StepRow(
        begin_ns=begin,
        end_ns=end,
        input_ns=sum(forward) - sum(fetch),
        forward_ns=sum(backward) - sum(forward),
        backward_ns=sum(backward_end) - sum(backward),
        optimizer_ns=optimizer_end - optimizer_begin,
        compute_end_ns=compute_end[-1] if waits_behind else backward_end[-1],
        sync_end_ns=backward_end[-1],
        earlier_wait_ns=sum(done - computed for computed, done in earlier if computed) if waits_behind else 0,
        buffer_wait_ns=sum(wait.end - wait.begin for wait in buffers),
        buffer_begin_ns=buffers[-1].begin if buffers else 0,
        buffer_end_ns=buffers[-1].end if buffers else 0,
        forward_wait_ns=sum(w.end - w.begin for w in waits if w.phase == FORWARD),
        backward_wait_ns=sum(w.end - w.begin for w in waits if w.phase == BACKWARD),
    )


def behind(stamps: Sequence[int]) -> Behind:
    """End of backward's compute and of backward of each micro-step of a stamped step that reduces."""
    count = (len(stamps) - 4) // STAMPS_A_MICRO_STEP
    ends = zip(stamps[-count:], stamps[4 : 4 * count + 1 : 4], strict=True)
    return [(computed, whole) for computed, whole in ends if computed]


def _at_end_of_backward(loss: torch.Tensor, stamp: Callable[[], int], cell: list[int]) -> None:
    """Put a stamp into the last item of `cell` when backward's compute is done, before DDP waits for its last bucket.

    The callback is queued by the first node of backward, so it runs before the callback in which DDP, once its last
    bucket is ready, waits for communication. On CUDA both run in the device's autograd thread. The engine has then
    made the streams that were current when backward() was called wait for the leaves, and these streams are current
    (engine.cpp, exec_post_processing). So the stamp is an event on the compute stream: behind all kernels of backward,
    and ahead of DDP's wait, which holds up that stream and not the host.
    """

    def at_end() -> None:
        cell[-1] = stamp()

    loss.register_hook(lambda _grad: ENGINE.queue_callback(at_end))  # type: ignore[no-untyped-call]
