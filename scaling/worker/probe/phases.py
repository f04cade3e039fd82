"""Find the phases of a step in a user's loop, with hooks that only take stamps.

What stands around the module's calls (parallel.guard.Calls) marks forward. A hook on the gradients of its outputs marks
the begin of backward, so the loss and its gradient count as forward. Optimizers' step hooks mark their steps. Two
callbacks of the autograd engine mark the end of backward's compute and of its communication: the first is queued when
backward begins, so it runs before the callback in which DDP waits for its last bucket; the second is queued by the
first, so it runs after that. Nothing is patched, no value is changed, and no copy of the model has anything of it. The
hooks on the outputs of a sharded module go before torch's own, which wait for its parameters.

What a probe notes of one step in a user's loop, whatever tells where its phases begin and end.

A mark is what begins or ends, and when. Optimizers' step hooks mark their steps; forward and backward are marked by
the kind of model (phases.Phases); of a pipeline nothing is marked (pipelined.PipelineMarks).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel.distributed import _find_tensors  # lists, tuples, dicts and dataclasses
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import unserializable_hook

from scaling.records.format import NO_TOKENS, StepRow
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.guard import Calls, guarded
from scaling.worker.parallel.strategy import FORWARD as IN_FORWARD
from scaling.worker.parallel.strategy import Wait
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


_ENGINE = Variable._execution_engine  # noqa: SLF001  # as FSDP does: there is no other way to see the end of backward's compute


class Phases(StepMarks):
    """Phases of DDP's wrapper or a sharded module. `wrapped` is the followed model or what torch.compile made of it."""

    def __init__(self, followed: Followed, wrapped: torch.nn.Module, stamp: Callable[[], int]) -> None:
        super().__init__(followed, stamp)
        self._wrapped = wrapped
        self._sends_buffers = followed.sends_buffers
        self._sending = False
        """Whether the forward that has begun broadcasts the buffers before it reaches the module."""
        self._in_backward = False
        self._tensor_hook: Any = guarded(self._at_backward)
        unserializable_hook(self._tensor_hook)  # type: ignore[no-untyped-call]  # torch.save is silent about such
        self._handles.append(Calls(wrapped, self._before_forward, self._after_forward))
        inner = followed.module
        if wrapped is followed.root is not inner:  # torch.compile would trace hooks inside a compiled module
            self._handles.append(Calls(inner, self._before_inner))

    @contextlib.contextmanager
    def also(self, module: torch.nn.Module) -> Iterator[None]:
        """Inside, the forward of `module` counts as the model's too."""
        calls = Calls(module, self._before_forward, self._after_forward)
        try:
            yield
        finally:
            calls.remove()

    def close(self) -> None:
        """Remove every hook, and hold nothing of the training."""
        super().close()
        del self._wrapped

    def begin(self, *, marking: bool) -> None:
        """Begin a new step."""
        super().begin(marking=marking)
        self._in_backward = False

    def _before_forward(self, module: Any, args: Any, kwargs: Any) -> None:
        if not self.inside:
            self._outside()
            return
        if self._marking:
            sends = self._sends_buffers and module is self._wrapped
            self._sending = sends and self._followed.will_send_buffers()
            self.marks.append((FORWARD, self._stamp()))
        if torch.is_grad_enabled():
            self._count(args, kwargs)

    def _before_inner(self, _module: Any, _args: Any, _kwargs: Any) -> None:
        if not self.inside:
            self.elsewhere += 1
        elif self._sending:
            self._sending = False
            self.marks.append((BUFFERS_END, self._stamp()))

    def _after_forward(self, _module: Any, output: Any) -> None:
        if self._marking and self.inside and torch.is_grad_enabled():
            self.forward_end_ns = now_ns()
            for tensor in _find_tensors(output):  # type: ignore[no-untyped-call]
                if tensor.requires_grad:
                    handle = tensor.register_hook(self._tensor_hook)
                    if self._followed.hooks_first:
                        _put_first(tensor._backward_hooks, handle.id)  # noqa: SLF001

    def _at_backward(self, _gradient: torch.Tensor) -> None:
        if self._marking and self.inside and not self._in_backward:
            self._in_backward = True
            self.marks.append((BACKWARD, self._stamp()))
            _ENGINE.queue_callback(guarded(self._at_compute_end))

    def _at_compute_end(self) -> None:
        self.marks.append((COMPUTE_END, self._stamp()))
        _ENGINE.queue_callback(guarded(self._at_sync_end))

    def _at_sync_end(self) -> None:
        self.marks.append((SYNC_END, self._stamp()))
        self._in_backward = False


def _put_first(hooks: dict[int, Any], key: int) -> None:
    """Let this hook of a tensor run first. The engine calls them in the order of insertion, as in a plain dict."""
    others = {other: hook for other, hook in hooks.items() if other != key}
    for other in others:
        del hooks[other]
    hooks.update(others)


def broadcasts(marks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Begin and end of each broadcast of buffers, from a step's marks."""
    return [(begin, end) for (_, begin), (kind, end) in itertools.pairwise(marks) if kind == BUFFERS_END]


def behind(marks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """End of backward's compute and of backward, of each backward of a step."""
    return [
        (computed, whole) for (kind, computed), (_, whole) in itertools.pairwise(marks) if kind == COMPUTE_END
    ]


def step_row(
    begin: int,
    marks: Sequence[tuple[int, int]],
    end: int,
    waits: Sequence[Wait] | None = None,
    *,
    waits_behind: bool = False,
) -> StepRow | None:
    """The row of a step, from its marks as host times, ns; None where no backward was seen.

    `waits`: where the rank waited for communication, if the model tells. Without them, and with `waits_behind` beside
    them, it waits after backward's compute.

    The time from the begin to the first forward is `input`. So is the time between a backward and the next forward,
    where the next micro-batch is fetched, unless an optimizer stepped in between. The time between a backward and the
    optimizer is `optimizer`: gradients are unscaled and clipped there.
    """
    spent = {"input": 0, "forward": 0, "backward": 0, "optimizer": 0, "host": 0}
    phase, since, stepped = "input", begin, False
    backward_begin = compute_end = sync_end = waited = buffered = buffers_begin = buffers_end = 0
    for kind, at in marks:
        if kind == FORWARD:
            fetching = phase == "host" and not stepped
            spent["input" if fetching else phase] += at - since
            phase, since, stepped = "forward", at, False
        elif kind == BUFFERS_END:
            buffers_begin, buffers_end = since, at
            buffered += at - since
        elif kind == BACKWARD:
            spent[phase] += at - since
            phase, since, backward_begin = "backward", at, at
        elif kind == COMPUTE_END:
            waited += sync_end - compute_end  # in the backward before this one
            compute_end = at
        elif kind == SYNC_END:
            spent["backward"] += at - backward_begin
            phase, since, sync_end = "host", at, at
        elif kind == OPTIMIZER:
            updating = phase == "host" and not stepped
            spent["optimizer" if updating else phase] += at - since
            phase, since, stepped = "optimizer", at, True
        elif kind == OPTIMIZER_END:
            spent[phase] += at - since
            phase, since = "host", at
    if not sync_end:
        return None
    after = waits is None or waits_behind
    return StepRow(
        begin_ns=begin,
        end_ns=end,
        input_ns=spent["input"],
        forward_ns=spent["forward"],
        backward_ns=spent["backward"],
        optimizer_ns=spent["optimizer"],
        compute_end_ns=compute_end if after else sync_end,
        sync_end_ns=sync_end,
        earlier_wait_ns=waited if after else 0,
        buffer_wait_ns=buffered,
        buffer_begin_ns=buffers_begin,
        buffer_end_ns=buffers_end,
        forward_wait_ns=sum(w.end - w.begin for w in waits or () if w.phase == IN_FORWARD),
        backward_wait_ns=sum(w.end - w.begin for w in waits or () if w.phase != IN_FORWARD),
    )
