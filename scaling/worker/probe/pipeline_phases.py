"""Find the phases of a step that runs a pipeline's schedule: what it computed last, and where it begins and ends.

A step of the schedule is forward from its begin, then the phase of the chunk that began last. Waits for messages lie in
these phases and are stamped (parallel.message_probe).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from scaling.worker.parallel import strategy
from scaling.worker.probe.pipelined import PipelinedModel
from scaling.worker.probe.step_marks import BACKWARD, FORWARD, SYNC_END, StepMarks


class PipelinePhases(StepMarks):
    """Of a schedule. Its microbatches count as micro-steps."""

    def __init__(self, followed: PipelinedModel, stamp: Callable[[], int]) -> None:
        super().__init__(followed, stamp)
        self._replaced = contextlib.ExitStack()
        self._replaced.enter_context(followed.schedule.telling(self._begun, self._chunk, self._ended))
        first = followed.stages[0]
        self._handles.append(first.register_forward_pre_hook(self._before_forward, with_kwargs=True))

    def close(self) -> None:
        """Remove every hook."""
        super().close()
        self._replaced.close()

    def _before_forward(self, _module: Any, args: Any, kwargs: Any) -> None:
        if not self.inside:
            self._outside()
        elif torch.is_grad_enabled():
            self._count(args, kwargs)

    def _begun(self) -> None:
        self._mark(FORWARD)

    def _chunk(self, phase: int) -> None:
        self._mark(FORWARD if phase == strategy.FORWARD else BACKWARD)

    def _ended(self) -> None:
        if self.inside and torch.is_grad_enabled():
            self.synced = True
        self._mark(SYNC_END)

    def _mark(self, kind: int) -> None:
        if self.inside and self._marking and torch.is_grad_enabled():
            self.marks.append((kind, self._stamp()))
