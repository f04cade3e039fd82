"""Which messages the size sweep sends. Pure.

Gloo's collectives end when the call returns, so each is timed by itself. A back end that runs on a device's streams
(NCCL and its like) needs the host for 10 to 40 us to enqueue a collective. So many are enqueued for one measurement,
behind one that is not timed, and their time is divided by their number, as nccl-tests does. A single one on an idle
device is measured too: what it takes longer is the host's latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaling.spec.run import FABRIC_BYTES_MIN, SWEEP_SHARE, Measure

SMALL_BYTES, SMALL_REPEATS = 2**16, 12
"""Messages up to this size are repeated in a sweep over Gloo, since each is short and noisy."""
SHOT_BYTES, SHOTS = 2**14, 5
"""Messages up to this size are also sent one by one from an idle device, so many times."""
STREAMED_BYTES_MAX = 2**29
"""A sweep over devices goes up to this size at least: on NVLink 64 MiB is not yet the plateau."""
MANY_BYTES, SOME_BYTES = 2**22, 2**26
MANY, SOME, FEW = 20, 10, 5
"""Collectives of a measurement up to MANY_BYTES, up to SOME_BYTES, and above."""


class Message(NamedTuple):
    """One measurement of the sweep, or one message of a replay."""

    kind: int
    """Index into spec.run.KINDS."""
    bytes: int
    """As nccl-tests counts them: the whole result of an all-gather, the whole input of a reduce-scatter."""
    calls: int = 1
    """Collectives that are enqueued behind one that is not timed; 1: a single one, and none before it."""

    group: int = 0
    """Key of its communicator; 0: that of the block."""

    @property
    def sent(self) -> int:
        """Collectives, the one that is not timed included."""
        return self.calls + (self.calls > 1)


def streamed(backend: str) -> bool:
    """Whether a back end's collectives are enqueued on a device."""
    return backend != "gloo"


def largest(measure: Measure, backend: str) -> int:
    """The largest message, bytes, where memory and time allow it."""
    return (
        max(measure.fabric_bytes_max, STREAMED_BYTES_MAX) if streamed(backend) else measure.fabric_bytes_max
    )


def sizes(ceiling: int, backend: str) -> Iterable[int]:
    """Sizes up to `ceiling`, rising, bytes."""
    size = FABRIC_BYTES_MIN
    while size <= ceiling:
        yield size
        size *= growth(backend)


def growth(backend: str) -> int:
    """Factor from one size to the next."""
    return 2 if streamed(backend) else 4


def calls(size: int, backend: str) -> int:
    """Collectives of one measurement."""
    if not streamed(backend):
        return 1
    return MANY if size <= MANY_BYTES else SOME if size <= SOME_BYTES else FEW


def affordable(took_s: float, size: int, measure: Measure, backend: str) -> bool:
    """Whether the next size may be sent, given what a collective of this one took."""
    more = growth(backend)
    return took_s * more * calls(size * more, backend) <= measure.budget_s * SWEEP_SHARE


def messages(
    kinds: Sequence[int], of: Sequence[int], backend: str, repeats: int = SMALL_REPEATS
) -> list[Message]:
    """Every measurement of one sweep over some sizes, bytes. `repeats`: of small messages over Gloo."""
    return [one for kind in kinds for size in of for one in _of_size(kind, size, backend, repeats)]


def _of_size(kind: int, size: int, backend: str, repeats: int) -> list[Message]:
    if not streamed(backend):
        return [Message(kind, size)] * (repeats if size <= SMALL_BYTES else 1)
    shots = [Message(kind, size)] * (SHOTS if size <= SHOT_BYTES else 0)
    return [*shots, Message(kind, size, calls(size, backend))]
