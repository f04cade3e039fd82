"""What a sharded unit calls for its collectives on the host's back end, while a watch stamps where they block."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from scaling.worker.parallel.guard import around, guarded


class Stamps(Protocol):
    """What is told of the calls (watch.Watch)."""

    def exchanging(self) -> AbstractContextManager[None]:
        """Around a reduce-scatter."""

    def gathered(self, inner: Callable[[], Any], group: Any) -> Any:
        """Make an all-gather."""

    def all_reduced(self) -> None:
        """Behind an all-reduce over the copies."""


class Blocking:
    """The calls of one unit, replaced until `put_back`. Whoever set calls of his own keeps them: these are around."""

    def __init__(self, group: Any, stamps: Stamps) -> None:
        """`group`: the unit's FSDPParamGroup."""
        self._group, self._stamps = group, stamps
        self._before: dict[str, Any] = {}
        gather, scatter = group._all_gather_comm, group._reduce_scatter_comm  # noqa: SLF001
        self._replace("_all_gather_comm", _Call(gather, lambda call: stamps.gathered(call, group)))
        if not hasattr(scatter, "watch"):  # the harness's own tells the watch by itself
            self._replace("_reduce_scatter_comm", _Call(scatter, self._scattered))
        if group._is_hsdp:  # noqa: SLF001
            self._hook = group._all_reduce_hook  # noqa: SLF001
            self._replace("_all_reduce_hook", self._all_reduced)

    def put_back(self) -> None:
        """Leave everything as it was."""
        for name, value in self._before.items():
            setattr(self._group, name, value)

    def _replace(self, name: str, value: Any) -> None:
        self._before[name] = getattr(self._group, name)
        setattr(self._group, name, value)

    def _scattered(self, call: Callable[[], Any]) -> Any:
        with self._stamps.exchanging():
            return call()

    def _all_reduced(self, gradients: Any) -> None:
        guarded(self._stamps.all_reduced)()
        if self._hook is not None:
            self._hook(gradients)


class _Call:
    """A collective's call with something around it; all else is the inner one's."""

    def __init__(self, inner: Any, around: Callable[[Callable[[], Any]], Any]) -> None:
        self._inner, self._around = inner, around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        call = around(self._inner, lambda inner, *a, **n: self._around(lambda: inner(*a, **n)))
        return call(*args, **named)
