"""What a probe notes of one step in a user's loop, whatever tells where its phases begin and end.

A mark is what begins or ends, and when. Optimizers' step hooks mark their steps; forward and backward are marked by
the kind of model (phases.Phases); of a pipeline nothing is marked (pipelined.PipelineMarks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from scaling.records.format import NO_TOKENS
from scaling.worker.parallel.guard import guarded
from scaling.worker.probe.followed import Followed

FORWARD, BACKWARD, COMPUTE_END, SYNC_END, OPTIMIZER, OPTIMIZER_END, BUFFERS_END = range(7)

Marks = list[tuple[int, int]]
"""(what begins or ends, clock token), in order."""


class StepMarks:
    """Collects the marks of the current step."""

    finds_phases = True
    """Whether steps have phases. Else only the blocks without stamps are recorded."""

    def __init__(self, followed: Followed, stamp: Callable[[], int]) -> None:
        self._followed, self._stamp = followed, stamp
        self._marking = False
        self.inside = False
        """Whether a step has begun and not ended."""
        self.marks: Marks = []
        self.forward_end_ns = 0
        """Host time at which the last forward ended. DDP's ready times count from there."""
        self.forwards = self.samples = 0
        """In this step: calls of forward with gradients, and the first dimensions of their first tensors, summed."""
        self.tokens = NO_TOKENS
        """What the loop told of this step's tokens, summed over its micro-steps."""
        self.synced = self.stepped = False
        """Whether this step reduces gradients, and whether an optimizer stepped in it."""
        self.elsewhere = self.astray = 0
        """Calls of forward outside of any step: all since the last step, and those with gradients since the start."""
        self.looking = True
        """Whether `samples` and `precision` are still to be found."""
        self.precision = ""
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        """Optimizers that stepped, by id."""
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(guarded(self._before_optimizer)),
            register_optimizer_step_post_hook(guarded(self._after_optimizer)),
        ]

    def close(self) -> None:
        """Remove every hook, and hold nothing of the training. Hooks on a tensor that it keeps do nothing from here."""
        self.inside = self._marking = False
        for handle in self._handles:
            guarded(handle.remove)()
        self._handles, self.marks, self.optimizers = [], [], {}
        del self._followed

    def begin(self, *, marking: bool) -> None:
        """Begin a new step."""
        self.marks, self._marking = [], marking
        self.forwards = self.samples = self.elsewhere = 0
        self.tokens = NO_TOKENS
        self.synced = self.stepped = False
        self.inside = True

    def add_tokens(self, count: int) -> None:
        """So many tokens more in this step."""
        self.tokens = max(self.tokens, 0) + count

    @property
    def unfinished(self) -> bool:
        """Whether the step has only run micro-steps so far: nothing was reduced and no optimizer stepped."""
        return self.forwards > 0 and not self.synced and not self.stepped

    def _outside(self) -> None:
        """A forward outside of any step."""
        self.elsewhere += 1
        self.astray += torch.is_grad_enabled()

    def _count(self, args: Any, kwargs: Any) -> None:
        """A forward with gradients of the step."""
        self.forwards += 1
        self.synced |= self._followed.reduces()
        if self.looking:
            self._look(args, kwargs)

    def _look(self, args: Any, kwargs: Any) -> None:
        """Note the batch size and the number format, which the model itself cannot tell."""
        tensors = (x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dim())
        first = next(tensors, None)
        self.samples += 0 if first is None else first.size(0)
        device, dtype = next(self._followed.module.parameters()).device.type, self._followed.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        self.precision = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_rest: Any) -> None:
        if self.inside:
            self.stepped = True
            self.optimizers[id(optimizer)] = optimizer
            if self._marking:
                self.marks.append((OPTIMIZER, self._stamp()))

    def _after_optimizer(self, *_arguments: Any) -> None:
        if self.inside and self._marking:
            self.marks.append((OPTIMIZER_END, self._stamp()))
