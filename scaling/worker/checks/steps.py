"""The user's step on one rank without DDP: its FLOPs and bytes, its duration and its memory."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import torch

from scaling.records.checkup import PhaseMemory, StepTimes, StepWork
from scaling.records.format import StepRow
from scaling.settings.plan import Plan, Trial
from scaling.worker.accelerator.accelerator import Accelerator, Precision
from scaling.worker.accelerator.memory import OUT_OF_MEMORY
from scaling.worker.checks.work import watching
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload
from scaling.worker.measure.recorder import resident_bytes
from scaling.worker.measure.step import Loop, step_row
from scaling.worker.parallel.torch_private import tensors_in

WARMUP = 3
STEPS = 8
BATCHES = 2


class Bench:
    """Runs the training loop of a plan's model, alone on this rank."""

    def __init__(
        self,
        plan: Plan,
        trial: Trial,
        workload: Workload,
        device: Accelerator,
        precision: Precision,
        rank: int,
    ) -> None:
        self._spec, self._workload = plan.spec, workload
        self._device, self._precision, self._rank = device, precision, rank
        self.batch = trial.batch
        """Samples a rank and step."""

    def work(self) -> StepWork:
        """Count one step, after another one in which the optimizer makes its state."""
        loop, batches = self.loop(self.batch)
        loop.plain()
        with watching(self._device.type) as work:
            loop.plain()
        shapes = [[tuple(t.shape) for t in tensors_in(batch)] for batch in batches]
        return StepWork(
            batch=self.batch,
            precision=self._spec.precision,
            operators=work.operators(),
            sightings=work.sightings(),
            input_bytes=loop.micro_steps * sum(t.numel() * t.element_size() for t in tensors_in(batches[0])),
            same_shapes=all(shape == shapes[0] for shape in shapes),
            recomputed_flops=work.recomputed_flops,
        )

    def times(self) -> StepTimes:
        """Time steps at the batch and at twice the batch."""
        memory = self._memory()
        rows = self._timed(self.batch)
        double: list[StepRow] = []
        with contextlib.suppress(*OUT_OF_MEMORY):
            double = self._timed(2 * self.batch)
        return StepTimes(
            step_ns=tuple(row.end_ns - row.begin_ns for row in rows),
            input_ns=tuple(row.input_ns for row in rows),
            double_batch_step_ns=tuple(row.end_ns - row.begin_ns for row in double),
            memory=memory,
        )

    def loop(self, batch: int) -> tuple[Loop, list[Any]]:
        """The loop at a batch, with an optimizer of its own, and its batches."""
        generator = torch.Generator().manual_seed(self._spec.seed * 1_000_003 + self._rank)
        samples = self._micro(batch)
        batches = [self._device.stage(self._workload.make_batch(samples, generator)) for _ in range(BATCHES)]
        loop = Loop(
            workload=self._workload,
            module=self._workload.module,
            optimizer=self._workload.optimizer(self._workload.module.parameters()),
            fetch=Feed(batches).fetch,
            accumulation=self._spec.accumulation_steps,
            device=self._device,
            precision=self._precision,
        )
        return loop, batches

    def _micro(self, batch: int) -> int:
        return max(1, batch // self._spec.accumulation_steps)

    def _timed(self, batch: int) -> list[StepRow]:
        loop, _ = self.loop(batch)
        clock = self._device.clock
        for _ in range(WARMUP):
            loop.stamped()
        with clock.window(STEPS * loop.stamps):
            rows = [loop.stamped() for _ in range(STEPS)]
            self._device.synchronize()
        return [cast("StepRow", step_row(clock.resolve(row))) for row in rows]

    def _memory(self) -> tuple[PhaseMemory, ...]:
        """Run one step by hand and synchronise after each phase, which a timed step must not do."""
        workload, device = self._workload, self._device
        phases: list[PhaseMemory] = []

        def note(phase: str) -> None:
            device.synchronize()
            peak = None if device.type == "cpu" else device.peak_bytes()
            phases.append(PhaseMemory(phase=phase, host_bytes=resident_bytes(), device_peak_bytes=peak))
            device.reset_peak()

        device.reset_peak()
        optimizer = workload.optimizer(workload.module.parameters())
        note("model")
        generator = torch.Generator().manual_seed(self._spec.seed)
        samples = self._micro(self.batch)
        inputs, targets = device.load(device.stage(workload.make_batch(samples, generator)))
        note("input")
        with self._precision.autocast():
            loss = workload.loss(workload.module(inputs), targets)
        note("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        note("backward")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        note("optimizer")
        return tuple(phases)
