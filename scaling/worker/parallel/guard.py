"""The one door between a user's training and what a Probe does inside it.

A Probe's code runs inside a training as hooks, as kernels of the dispatcher, and in place of methods that it replaces
for a block. All of it comes through here. While a Probe is open, whatever fails is told to it, and the training goes on
as if the code were not there. Without one (`scaling run`) errors are raised.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from scaling.errors import ScalingError, let_go, raise_from_signal


class Unseen:
    """Inside, no mode of the training and no tensor class of its own is told of calls of torch."""

    _operators: Any = None

    def __enter__(self) -> None:
        self._functions = torch._C.DisableTorchFunction()  # noqa: SLF001
        self._functions.__enter__()
        if torch._C._len_torch_dispatch_stack():  # noqa: SLF001
            self._operators = torch._C._DisableTorchDispatch()  # noqa: SLF001

    def __exit__(self, *_error: object) -> None:
        if self._operators is not None:
            self._operators.__exit__(None, None, None)
            self._operators = None
        self._functions.__exit__(None, None, None)


class Guard:
    """Whom errors are told, in this process."""

    told: ClassVar[Callable[[Exception], None] | None] = None
    """What the open Probe does about an error; None: it is raised."""


def attempt(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What `function` gives, or None where it fails."""
    try:
        with Unseen():
            return function(*args, **named)
    except Exception as error:  # noqa: BLE001
        _tell_or_raise(error)
        return None


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, or nothing where that fails."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():  # it would be traced
            return function(*args, **named)
        return attempt(function, *args, **named)

    return call


_name_of = vars(type)["__name__"].__get__


def words(error: BaseException) -> str:
    """An error's type and text, whatever its class does when it is asked for them; of one of ours its text."""
    try:
        return str(error) if isinstance(error, ScalingError) else f"{_name_of(type(error))}: {error}"
    except BaseException as another:  # noqa: BLE001
        raise_from_signal(another)
        return str(_name_of(type(error)))


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
        hidden = Unseen()

        def once(*changed: Any, **others: Any) -> Any:
            hidden.__exit__()
            try:
                done.append(inner(*changed, **others))
            except BaseException as error:
                raised.append(error)
                raise
            finally:
                hidden.__enter__()
            return done[-1]

        try:
            with hidden:
                return replacement(once, *args, **named)
        except Exception as error:
            if raised and error is raised[0]:
                raise
            _tell_or_raise(error)
        if raised:
            raise raised[0]
        return done[0] if done else inner(*args, **named)

    return call


def untraced(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, which torch.compile leaves alone where it is in use."""
    return torch.compiler.disable(call) if "torch._dynamo" in sys.modules else call  # type: ignore[no-untyped-call]


class Within:
    """Stands around a Python function's calls within that function: who kept, compares or pickles it sees no other."""

    def __init__(self, function: Any, replacement: Callable[..., Any]) -> None:
        """`replacement`: as `around` takes it."""
        self._function, self._codes = function, []
        if not isinstance(function, types.FunctionType):
            return
        code = function.__code__
        inner = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        inner.__kwdefaults__ = function.__kwdefaults__
        passed_on = untraced(around(inner, replacement))

        def through(*args: Any, **named: Any) -> Any:
            call: Any = "what is called"  # a constant, since others see the function's globals and defaults
            return call(*args, **named)

        constants = tuple(passed_on if c == "what is called" else c for c in through.__code__.co_consts)
        function.__code__ = through.__code__.replace(
            co_consts=constants, co_freevars=code.co_freevars, co_filename=code.co_filename
        )
        self._codes = [function.__code__, code]

    def remove(self) -> None:
        """Take it away, unless another has put something there since."""
        if self._codes and self._function.__code__ is self._codes[0]:
            self._function.__code__ = self._codes[1]


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
        self._before, self._after = before, after or (lambda _module, _output: None)
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
            attempt(calls._before, module, args, named)  # noqa: SLF001
        output = (inner or module._call_impl)(*args, **named)  # noqa: SLF001
        for calls in reversed(around):
            attempt(calls._after, module, output)  # noqa: SLF001
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
    with let_go():
        if sys.stderr is not None:  # print would take standard output instead
            print(text, file=sys.stderr, flush=True)
