"""The one door between a user's training and what a Probe does inside it.

A Probe's code runs inside a training as hooks, as kernels of the dispatcher, and in place of methods that it replaces
for a block. All of it comes through here. While a Probe is open, whatever fails is told to it, and the training goes on
as if the code were not there. Without one (`scaling run`) errors are raised.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import signal
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch

Failed = Callable[[Exception], None]


class Guard:
    """Whom errors are told, in this process."""

    told: ClassVar[Failed | None] = None
    """What the open Probe does about an error; None: it is raised."""


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, or nothing where that fails."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as error:  # noqa: BLE001
            _tell_or_raise(error)
            return None

    return call


def raise_from_signal(error: BaseException) -> None:
    """Raise what a signal handler of the training raised: it may interrupt any line, and is meant for the training."""
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    parts = (
        (handler, getattr(handler, "func", None), inspect.getattr_static(type(handler), "__call__", None))
        for handler in handlers
    )
    codes = {getattr(part, "__code__", None) for part in itertools.chain(*parts)}
    if any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error


def _tell_or_raise(error: Exception) -> None:
    """Tell the open Probe; without one, raise."""
    raise_from_signal(error)
    if Guard.told is None:
        raise error
    Guard.told(error)


def around(inner: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """`replacement(inner, ...)`, which calls `inner` once. Where it fails by itself, `inner` is called all the same."""

    @functools.wraps(inner)
    def call(*args: Any, **named: Any) -> Any:
        done: list[Any] = []
        raised: list[BaseException] = []

        def once(*changed: Any, **others: Any) -> Any:
            try:
                result = inner(*changed, **others)
            except BaseException as error:
                raised.append(error)
                raise
            done.append(result)
            return result

        try:
            return replacement(once, *args, **named)
        except Exception as error:
            if raised:
                raise
            _tell_or_raise(error)
        return done[0] if done else inner(*args, **named)

    return call


class Calls:
    """Stands around the calls of a module, where copies, checkpoints and scripts of it do not find anything.

    `Module.__call__` looks into this slot for what `Module.compile` made. torch leaves it out of copies and pickles; a
    module with a `__getstate__` of its own copies and pickles this object as None, which is an empty slot. A shallow
    copy that shares it is called as if it were not there.
    """

    SLOT = "_compiled_call_impl"

    def __init__(
        self,
        module: torch.nn.Module,
        before: Callable[[Any, Any, Any], None],
        after: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """`before(module, args, kwargs)` and `after(module, output)` return nothing."""
        self._module = weakref.ref(module)
        self._before, self._after = before, after
        self.inner: Any = vars(module).get(self.SLOT)
        vars(module)[self.SLOT] = self

    def __call__(self, *args: Any, **named: Any) -> Any:
        module: Any = self._module()
        if torch.compiler.is_compiling():  # it would be traced
            return (self.inner or module._call_impl)(*args, **named)  # noqa: SLF001
        caller = sys._getframe(1).f_locals.get("self")  # noqa: SLF001  # the slot is not told which copy is called
        module = caller if isinstance(caller, torch.nn.Module) else module
        around, inner = [], self
        while isinstance(inner, Calls):
            if inner._module() is module:
                around.append(inner)
            inner = inner.inner
        for calls in around:
            try:
                calls._before(module, args, named)  # noqa: SLF001
            except Exception as error:  # noqa: BLE001
                _tell_or_raise(error)
        output = (inner or module._call_impl)(*args, **named)  # noqa: SLF001
        for calls in reversed(around):
            try:
                if calls._after is not None:  # noqa: SLF001
                    calls._after(module, output)  # noqa: SLF001
            except Exception as error:  # noqa: BLE001
                _tell_or_raise(error)
        return output

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def remove(self) -> None:
        """Take it away; what was put around it later stays."""
        module = self._module()
        slot = None if module is None else vars(module).get(self.SLOT)
        if module is not None and slot is self:
            vars(module).pop(self.SLOT)
            if self.inner is not None:
                vars(module)[self.SLOT] = self.inner
        while isinstance(slot, Calls):
            if slot.inner is self:
                slot.inner = self.inner
            slot = slot.inner


def compiled(module: torch.nn.Module) -> bool:
    """Whether torch.compile made it, or `Module.compile` was called on it."""
    slot = module._compiled_call_impl  # noqa: SLF001
    while isinstance(slot, Calls):
        slot = slot.inner
    return hasattr(module, "_orig_mod") or slot is not None


def tell(text: str) -> None:
    """Print a line on standard error; nothing where that is closed or full."""
    try:
        if sys.stderr is not None:  # print would take standard output instead
            print(text, file=sys.stderr, flush=True)
    except Exception:  # noqa: BLE001, S110
        pass
