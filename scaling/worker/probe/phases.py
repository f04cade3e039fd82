"""Find the phases of a step in a user's loop, with hooks that only take stamps.

A mark is what begins or ends, and when. What stands around the calls of modules (parallel.guard.Calls) marks forward,
and optimizers' step hooks mark their steps. Every backward passes torch's call of its engine, around which this module
stands while it is open: it marks begin and end. A callback of the engine marks the end of backward's compute. It is
queued by the first node, so it runs before the callback in which DDP waits for its last bucket. No value is changed,
and no copy of the model has anything of it.

The batches that the model is called with tell how many samples a step has, and whether the loop fetches the next one
between forward and backward.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from scaling.errors import let_go
from scaling.records.format import NO_TOKENS
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.guard import Calls, Within, compiled, guarded
from scaling.worker.parallel.torch_private import ENGINE
from scaling.worker.probe import marks
from scaling.worker.probe.follow import Followed

NAMES_MAX = 32
"""Names of phases that a loop has at most."""


class Phases:
    """Collects the marks of the current step."""

    def __init__(
        self,
        followed: Followed,
        wrapped: torch.nn.Module,
        beside: Sequence[torch.nn.Module],
        stamp: Callable[[], int],
    ) -> None:
        """`wrapped`: the followed model, or what torch.compile made of it. `beside`: others that the loop trains."""
        self._followed, self._stamp = followed, stamp
        self.reduces_behind = followed.reduces_behind
        """Whether the end of backward's compute is marked, behind which the rank waits for DDP's reducer."""
        self._beside = frozenset(map(id, beside))
        self._thread = threading.get_ident()
        self._calls = self._backwards = 0
        """How deep the loop is in forwards and in backwards, which may begin further ones."""
        self._last = 0
        """The id of the model whose forward was the last one of this step."""
        self._fetches = Fetches()
        self._marking = False
        self.inside = False
        """Whether a step has begun and not ended."""
        self.marks: marks.Marks = []
        self.forward_end_ns = 0
        """Host time at which the last forward ended. DDP's ready times count from there."""
        self.forwards = self.samples = 0
        """In this step: calls of forward with gradients, and the first dimensions of their first tensors, summed."""
        self.tokens, self.squared = NO_TOKENS, 0
        """What the loop told of this step's tokens and of squared lengths, summed over its micro-steps."""
        self.names: list[str] = []
        """Names of phases, in the order of first use."""
        self._named, self._depth = "", 0
        """The named phase that runs, and how deep the loop is in such phases."""
        self.synced = self.reduced = self.stepped = False
        """Whether this step reduces gradients, whether it has, and whether an optimizer stepped in it."""
        self.elsewhere = self.astray = 0
        """Calls of forward outside of any step: all since the last step, and those with gradients since the start."""
        self.looking = True
        """Whether `samples` and `precision` are still to be found."""
        self.precision = ""
        self.optimizers: MutableMapping[int, torch.optim.Optimizer] = weakref.WeakValueDictionary()
        """Optimizers that stepped, by id, while the loop keeps them."""
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(guarded(self._before_optimizer)),
            register_optimizer_step_post_hook(guarded(self._after_optimizer)),
        ]
        self._handles += [
            Calls(module, self._before_forward, self._after_forward) for module in (wrapped, *beside)
        ]
        module = followed.module
        if wrapped is not module and not compiled(wrapped):  # torch.compile would trace what is inside of one
            self._handles.append(Calls(module, self._before_inner))
        engine: Any = torch.autograd.graph._engine_run_backward  # noqa: SLF001  # of backward() and grad() alike
        self._handles.append(Within(engine, self._through_backward))

    def close(self) -> None:
        """Remove every hook, and hold nothing of the training. Hooks on a tensor that it keeps do nothing from here."""
        self.inside = self._marking = False
        for handle in self._handles:
            guarded(handle.remove)()
        self._handles, self.marks, self.optimizers = [], [], {}
        del self._followed

    def begin(self, *, marking: bool) -> None:
        """Begin a new step."""
        self.marks = []
        self.forwards = self.samples = 0
        self.tokens, self.squared = NO_TOKENS, 0
        self.synced = self.reduced = self.stepped = False
        self.resume(marking=marking)
        self._calls = self._backwards = self._last = 0
        self._named, self._depth = "", 0

    def resume(self, *, marking: bool) -> None:
        """Go on with a step."""
        self._marking, self.inside, self.elsewhere = marking, True, 0

    def enter_named(self, name: str) -> str:
        """Begin a phase that the loop names. Returns why it is left out, or nothing."""
        if threading.get_ident() != self._thread:
            return "it is called by the thread that runs step()"
        self._depth += 1
        if self._depth > 1:
            return "phases do not nest"
        if not self.inside:
            return "it is called inside step()"
        if not name.strip():
            return "its name is a text"
        if name not in self.names:
            if len(self.names) == NAMES_MAX:
                return f"a loop has {NAMES_MAX} names at most"
            self.names.append(name)
        self._named = name
        self._mark_named(marks.NAMED)
        return ""

    def leave_named(self) -> None:
        """Leave such a phase, which ends if it lies in no other; its step may have ended before."""
        if threading.get_ident() == self._thread:
            self._depth = max(0, self._depth - 1)
            if self._named and not self._depth:
                self._mark_named(marks.NAMED + 1)
                self._named = ""

    def _mark_named(self, kind: int) -> None:
        if self.inside and self._marking:
            self.marks.append((kind + 2 * self.names.index(self._named), self._stamp()))

    def add_tokens(self, count: int, squared: int) -> None:
        """So many tokens more in this step, and so much more of squared lengths."""
        self.tokens = max(self.tokens, 0) + count
        self.squared += squared

    @property
    def unfinished(self) -> bool:
        """Whether the step has only run micro-steps so far: nothing was reduced and no optimizer stepped."""
        return self.forwards > 0 and not self.synced and not self.stepped

    def _look(self, args: Any, kwargs: Any) -> None:
        """Note the batch size and the number format, which the model itself cannot tell."""
        self.samples += samples_of(args, kwargs)
        device, dtype = next(self._followed.module.parameters()).device.type, self._followed.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        self.precision = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_rest: Any) -> None:
        if self.inside:
            self.stepped = True
            self.optimizers[id(optimizer)] = optimizer
            if self._marking:
                self.marks.append((marks.OPTIMIZER, self._stamp()))

    def _after_optimizer(self, *_arguments: Any) -> None:
        if self.inside and self._marking:
            self.marks.append((marks.OPTIMIZER_END, self._stamp()))

    @contextlib.contextmanager
    def also(self, module: torch.nn.Module) -> Iterator[None]:
        """Inside, the forward of `module` counts as the model's too."""
        calls = Calls(module, self._before_forward, self._after_forward)
        try:
            yield
        finally:
            calls.remove()

    def _before_forward(self, module: Any, args: Any, kwargs: Any) -> None:
        if self._backwards or threading.get_ident() != self._thread:
            return  # computed again by a checkpoint
        self._calls += 1
        if self._calls > 1:
            return
        if not self.inside:
            self.elsewhere += 1
            self.astray += torch.is_grad_enabled()
            return
        if self._marking:
            another = self._last not in (0, id(module))
            self.marks.append((marks.NEXT_MODEL if another else marks.FORWARD, self._stamp()))
            self._last = id(module)
        if torch.is_grad_enabled() and id(module) not in self._beside:
            self.forwards += 1
            self.synced |= self._followed.reduces()
            if self.looking:
                self._fetches.before_forward(args, kwargs)
                self._look(args, kwargs)

    def _before_inner(self, _module: Any, _args: Any, _kwargs: Any) -> None:
        """An evaluation between two steps may call what the wrapper holds."""
        if not (self.inside or self._calls):
            self.elsewhere += 1

    def _after_forward(self, _module: Any, _output: Any) -> None:
        if self._backwards or threading.get_ident() != self._thread:
            return
        self._calls = max(0, self._calls - 1)
        if self._marking and self.inside and not self._calls and torch.is_grad_enabled():
            self.forward_end_ns = now_ns()
            if self._fetches.between > 1:
                self.marks.append((marks.FORWARD_END, self._stamp()))

    def _through_backward(self, run: Callable[..., Any], *args: Any, **named: Any) -> Any:
        result = self._run_backward(run, *args, **named)
        self.reduced |= self.inside and self.synced
        return result

    def _run_backward(self, run: Callable[..., Any], outputs: Any, *args: Any, **named: Any) -> Any:
        if self.looking and self.inside and not self._backwards:
            guarded(self._fetches.before_backward)()
        ours = self.inside and self._marking and not self._backwards
        if not ours or threading.get_ident() != self._thread:
            return run(outputs, *args, **named)
        self._backwards = 1
        self.marks.append((marks.BACKWARD, self._stamp()))
        queued: list[int] = []

        def at_begin(*_gradients: Any) -> None:
            if not queued:  # a node that is reached again
                queued.append(1)
                ENGINE.queue_callback(guarded(self._at_compute_end))

        handle = None
        with let_go():  # torch says itself what it cannot differentiate
            root: Any = torch.autograd.graph._get_grad_fn_or_grad_acc(outputs[0])  # noqa: SLF001
            handle = root.register_prehook(guarded(at_begin)) if self.reduces_behind else None
        try:
            return run(outputs, *args, **named)
        finally:
            if handle is not None:
                handle.remove()
            self._backwards = 0
            self.marks.append((marks.SYNC_END, self._stamp()))

    def _at_compute_end(self) -> None:
        self.marks.append((marks.COMPUTE_END, self._stamp()))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in containers, such as a tokenizer's batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


_CHANNELS = (1, 3, 4)
"""An image (channels, height, width) has so many channels."""


def samples_of(args: Any, kwargs: Any) -> int:
    """How many samples a model is called with: the first dimension of the first tensor, or a list's items; 0: unknown.

    A list has a sample in each item if its tensors differ in their first dimension, if they are single images, or if
    another list has as many items, with a mapping in each (the targets of torchvision's detection models).
    """
    given = [*args, *kwargs.values()]
    for value in given:
        tensors = [t for t in value if isinstance(t, torch.Tensor)] if isinstance(value, list) else []
        if not tensors or len(tensors) != len(value):
            continue
        first = {t.size(0) if t.dim() else 0 for t in tensors}
        images = all(t.dim() == 3 for t in tensors) and first <= set(_CHANNELS)
        beside = [v for v in given if isinstance(v, list) and v is not value and len(v) == len(value)]
        if len(first) > 1 or images or any(all(isinstance(x, Mapping) for x in v) for v in beside):
            return len(value)
        break
    whole = next((t for t in _tensors(given) if t.dim()), None)
    return 0 if whole is None else whole.size(0)


class Fetches:
    """Find out whether a loop fetches its next batch between forward and backward, as nanoGPT does.

    It does if a tensor that a forward is called with was not there when the forward before began, and was when the
    backward before began: as a variable of the function that calls the model.
    """

    def __init__(self) -> None:
        self._place = 0
        self._earlier: list[weakref.ref[torch.Tensor]] = []
        self._new: list[weakref.ref[torch.Tensor]] = []
        self.between = 0
        """How many forwards took such a tensor."""

    def before_forward(self, args: Any, kwargs: Any) -> None:
        """Look at the tensors that a forward takes."""
        given = {id(t) for t in _tensors([*args, *kwargs.values()])}
        self.between += any(id(ref()) in given for ref in self._new)
        self._place, tensors = _variables()
        self._earlier, self._new = list(map(weakref.ref, tensors)), []

    def before_backward(self) -> None:
        """Look at the tensors that are there now."""
        place, tensors = _variables()
        if place == self._place:
            before = {id(ref()) for ref in self._earlier}
            self._new = [weakref.ref(t) for t in tensors if id(t) not in before]


_NOT_THE_LOOP = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))


_LOOKS = frozenset(("locals", "vars"))
_HELD_HERE = 3
"""References to a frame's copy of its variables that nobody else holds: the frame's, ours, and the count's own."""


def _variables() -> tuple[int, list[torch.Tensor]]:
    """The function that has called torch, and the tensors among its variables."""
    frame: Any = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_LOOP):
        frame = frame.f_back
    if frame is None:
        return 0, []
    in_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if in_function and not _LOOKS.isdisjoint(frame.f_code.co_names):
        return id(frame), []  # what `locals()` gave to it would change, in Python before 3.13
    variables = frame.f_locals
    # Only by its type: to ask an object for its class may load what it stands for.
    tensors = {name: v for name, v in list(variables.items()) if issubclass(type(v), torch.Tensor)}
    if in_function and isinstance(variables, dict):  # a copy, which would keep them alive
        if sys.getrefcount(variables) == _HELD_HERE:
            variables.clear()
        else:  # others look at this copy, too
            for name in tensors:
                del variables[name]
    return id(frame), list(tensors.values())
