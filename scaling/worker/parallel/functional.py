"""Stamp where a rank waits for a functional collective, as those of DTensor and tensor parallel are.

Their result is waited for by the operator `wait_tensor`, in forward and in backward. While a watch is on, the operator
has a kernel that takes a stamp before and after it. On an accelerator the stamps are events: the stream waits. Nothing
else changes, and the kernel is removed after the block. A collective that blocks the host is stamped by `exchanging`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from scaling.worker.parallel.strategy import BACKWARD, FORWARD, Wait
from scaling.worker.parallel.tap import SELECT, Tap


class FunctionalWaits:
    """The windows in which this rank waits. One is on at a time in a process."""

    _now: FunctionalWaits | None = None

    def __init__(self, stamp: Callable[[], int]) -> None:
        self._stamp = stamp
        self._tap: Tap | None = None
        self.waits: list[Wait] = []

    @contextlib.contextmanager
    def on(self, tap: Tap | None = None) -> Iterator[None]:
        """Stamp inside; `tap`: also tell it of each collective when it was waited for, and in which phase."""
        self.waits, self._tap, FunctionalWaits._now = [], tap, self
        library = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]
        library.impl("wait_tensor", self._kernel(tap), "BackendSelect", with_keyset=True)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            FunctionalWaits._now, self._tap = None, None
            library._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001

    def take(self) -> list[Wait]:
        """The windows since the last call."""
        found, self.waits = self.waits, []
        return found

    def _kernel(self, tap: Tap | None) -> Callable[..., Any]:
        operator, stamp = torch.ops._c10d_functional.wait_tensor.default, self._stamp  # noqa: SLF001

        def kernel(keys: Any, tensor: torch.Tensor) -> Any:
            phase = phase_now()
            begin = stamp()
            result = operator.redispatch(keys.remove(SELECT), tensor)
            end = stamp()
            self.waits.append(Wait(phase, begin, end))
            seen = tap.waited_for(tensor.data_ptr()) if tap else None
            if seen is not None:
                seen.wait, seen.resume, seen.phase = begin, end, phase
            return result

        return kernel

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Around a collective that blocks the host."""
        tap, phase, begin = self._tap, phase_now(), self._stamp()
        place = tap.count if tap else 0
        yield
        self.waits.append(Wait(phase, begin, self._stamp()))
        for seen in tap.since(place) if tap else ():
            seen.phase = phase

    @classmethod
    def exchanging(cls) -> contextlib.AbstractContextManager[None]:
        """`around` of the watch that is on; nothing where none is."""
        return cls._now.around() if cls._now else contextlib.nullcontext()


def phase_now() -> int:
    """Whether this thread computes forward or backward."""
    return FORWARD if torch._C._current_graph_task_id() == -1 else BACKWARD  # noqa: SLF001
