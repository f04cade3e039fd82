"""The user's step on one rank, without DDP: what it asks for, how long it takes, what memory it holds."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from scaling.checkup import PhaseMemory, StepTimes, StepWork
from scaling.plan import Plan, Trial
from scaling.spec import Inject
from scaling.worker.checks.work import watching
from scaling.worker.devices import Device
from scaling.worker.feed import Feed
from scaling.worker.inject import Faults
from scaling.worker.memory import OUT_OF_MEMORY
from scaling.worker.precision import Precision
from scaling.worker.recorder import resident_bytes
from scaling.worker.step import Loop, step_fields
from scaling.worker.workload import Workload

WARMUP = 3
STEPS = 8
BATCHES = 2


class Bench:
    """The training loop of a plan's model, alone on this rank."""

    def __init__(
        self, plan: Plan, trial: Trial, workload: Workload, device: Device, precision: Precision, rank: int
    ) -> None:
        self._plan, self._trial, self._workload = plan, trial, workload
        self._device, self._precision, self._rank = device, precision, rank
        self._faults = Faults(Inject(), rank=rank, first_on_host=False)

    def work(self) -> StepWork:
        """One step under the counter, after one that lets the optimizer make its state."""
        loop, batches = self._loop(self._trial.batch)
        loop.plain()
        with watching(self._device.type) as work:
            loop.plain()
        shapes = [[tuple(t.shape) for t in _tensors(batch)] for batch in batches]
        return StepWork(
            batch=self._trial.batch,
            precision=self._plan.spec.precision,
            operators=work.operators(),
            sightings=work.sightings(),
            input_bytes=loop.micro_steps * sum(t.numel() * t.element_size() for t in _tensors(batches[0])),
            same_shapes=all(shape == shapes[0] for shape in shapes),
        )

    def times(self) -> StepTimes:
        """Timed steps at the batch and at twice the batch."""
        memory = self._memory()
        rows = self._timed(self._trial.batch)
        double: list[list[int]] = []
        with contextlib.suppress(*OUT_OF_MEMORY):
            double = self._timed(2 * self._trial.batch)
        return StepTimes(
            step_ns=tuple(row[1] - row[0] for row in rows),
            input_ns=tuple(row[2] for row in rows),
            double_batch_step_ns=tuple(row[1] - row[0] for row in double),
            memory=memory,
        )

    def _loop(self, batch: int) -> tuple[Loop, list[Any]]:
        generator = torch.Generator().manual_seed(self._plan.spec.seed * 1_000_003 + self._rank)
        micro_batch = self._micro(batch)
        batches = [
            self._device.stage(self._workload.make_batch(micro_batch, generator)) for _ in range(BATCHES)
        ]
        loop = Loop(
            workload=self._workload,
            module=self._workload.module,
            optimizer=self._workload.optimizer(self._workload.module.parameters()),
            fetch=Feed(batches).fetch,
            accumulation=self._plan.spec.accumulation_steps,
            device=self._device,
            precision=self._precision,
            faults=self._faults,
        )
        return loop, batches

    def _micro(self, batch: int) -> int:
        return max(1, batch // self._plan.spec.accumulation_steps)

    def _timed(self, batch: int) -> list[list[int]]:
        """records.STEP_FIELDS of some steps."""
        loop, _ = self._loop(batch)
        clock = self._device.clock
        for _ in range(WARMUP):
            loop.stamped()
        with clock.window(STEPS * loop.stamps):
            rows = [loop.stamped() for _ in range(STEPS)]
            self._device.synchronize()
        return [step_fields(clock.resolve(row)) for row in rows]

    def _memory(self) -> tuple[PhaseMemory, ...]:
        """One step by hand, the device waited for after each phase, as no timed step may."""
        workload, device = self._workload, self._device
        found: list[PhaseMemory] = []

        def note(phase: str) -> None:
            device.synchronize()
            found.append(
                PhaseMemory(
                    phase=phase,
                    host_bytes=resident_bytes(),
                    device_peak_bytes=device.peak_bytes() if device.type != "cpu" else None,
                )
            )
            device.reset_peak()

        device.reset_peak()
        optimizer = workload.optimizer(workload.module.parameters())
        note("model")
        generator = torch.Generator().manual_seed(self._plan.spec.seed)
        inputs, targets = device.load(
            device.stage(workload.make_batch(self._micro(self._trial.batch), generator))
        )
        note("input")
        with self._precision.autocast():
            loss = workload.loss(workload.module(inputs), targets)
        note("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        note("backward")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        note("optimizer")
        return tuple(found)


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(batch) if isinstance(t, torch.Tensor)]
