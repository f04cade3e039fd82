"""Which collectives of a loop were seen to be waited for, and which were not: unclaimed bytes.

Waits can only be left out of a rank's own time where they are seen. A collective is claimed when a wait for it is seen,
or for a later one of its group, which ends behind it. It stays unclaimed if nobody waits for it until the end of the
next step, or if the loop asks whether it is done before it waits: between two such questions the rank may have waited
or computed, and nobody can tell which. On an accelerator a stream other than the one that computes carries what it
waits for, until the stream that computes waits for it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

MESSAGES = ("send", "recv", "recv_anysource")
END_COALESCING = "_end_coalescing"
"""How torch.distributed calls of a process group in Python are named."""


@dataclass(slots=True, eq=False)
class Begun:
    """A collective or message that the loop has begun."""

    group: str
    bytes: int
    alone: bool
    """Whether it is a message, whose end tells nothing of others."""
    claimed: bool = False
    asked: bool = False
    """Whether its future was asked for."""
    polled: bool = False
    """Whether the loop asked if it is done, and it was not."""


class Traffic(NamedTuple):
    """What a step sends, as the calls of torch.distributed in Python show it."""

    sent_bytes: int
    """The larger of input and result of each call."""
    unclaimed_bytes: int
    polled: int
    """Collectives in all steps that the loop asked about instead of waiting."""


class Claims:
    """The collectives that were begun in the last two steps. `stream` below is None for the one that computes."""

    def __init__(self) -> None:
        self._works: weakref.WeakKeyDictionary[Any, Begun] = weakref.WeakKeyDictionary()
        self._streams: dict[int, list[Begun]] = {}
        """What a stream sends or waits for, by its id."""
        self._events: weakref.WeakKeyDictionary[Any, list[Begun]] = weakref.WeakKeyDictionary()
        """What an event's stream had sent or waited for when it was recorded."""
        self._before: list[Begun] | None = None
        self._now: list[Begun] = []
        self._steps = 0
        self._sums: tuple[int, ...] = (0, 0, 0)

    def begun(self, name: str, group: str, tensors: Any, work: Any) -> Begun:
        """Note a call of a process group by its name. `tensors`: its arguments."""
        noted = Begun(group, max(map(nbytes_of, tensors), default=0), name in MESSAGES)
        if name == END_COALESCING:  # its work is that of all messages before it
            for other in self._open():
                other.alone &= other.group != group
        self._now.append(noted)
        if isinstance(work, dist.Work):
            self._works[work] = noted
        return noted

    def waited(self, work: Any, stream: int | None) -> None:
        """A stream, or the host, waits for a work."""
        if (last := self._works.get(work)) is not None:
            self.claim(self._up_to(last), stream)

    def asked(self, work: Any) -> None:
        """The loop takes the future of a work."""
        if (noted := self._works.get(work)) is not None:
            noted.asked = True

    def of_futures(self) -> list[Begun]:
        """Those that a future may stand for."""
        return [noted for noted in self._open() if noted.asked]

    def polled(self, work: Any, *, done: bool) -> None:
        """The loop asks whether a work is done."""
        noted = self._works.get(work)
        if noted is None or noted.claimed:
            return
        if done:
            self.claim(self._up_to(noted), None)
        else:
            noted.polled = True

    def on_stream(self, stream: int) -> list[Begun]:
        """What a stream sends or waits for, and the one that computes has not waited for."""
        return [noted for noted in self._streams.get(stream, ()) if not noted.claimed]

    def recorded(self, event: Any, stream: int) -> None:
        """An event is recorded on a stream."""
        self._events[event] = self.on_stream(stream)

    def at_event(self, event: Any) -> list[Begun]:
        """What was on an event's stream before it, and the one that computes has not waited for."""
        return [noted for noted in self._events.get(event, ()) if not noted.claimed]

    def claim(self, some: list[Begun], stream: int | None) -> None:
        """A stream waits for these."""
        if stream is not None:
            self._streams[stream] = [*self.on_stream(stream), *some]
        for noted in some if stream is None else ():
            noted.claimed = True

    def end_step(self) -> None:
        """Count the step before the one that ends now, whose collectives have had a step to be waited for."""
        if self._before is not None:
            lost = [noted for noted in self._before if noted.polled or not noted.claimed]
            polled = sum(noted.polled for noted in lost)
            figures = (sum(noted.bytes for noted in self._before), sum(noted.bytes for noted in lost), polled)
            self._sums = tuple(map(sum, zip(self._sums, figures, strict=True)))
            self._steps += 1
        self._before, self._now = self._now, []

    def traffic(self) -> Traffic:
        """The mean step's."""
        sent, unclaimed, polled = self._sums
        steps = max(1, self._steps)
        return Traffic(sent // steps, -(-unclaimed // steps), polled)

    def _open(self) -> list[Begun]:
        return [noted for noted in (*(self._before or ()), *self._now) if not noted.claimed]

    def _up_to(self, last: Begun) -> list[Begun]:
        """A collective with those of its group that end before it, or a message."""
        mine = [noted for noted in self._open() if noted is last or not (last.alone or noted.alone)]
        mine = [noted for noted in mine if noted.group == last.group]
        return mine[: mine.index(last) + 1] if last in mine else []


def nbytes_of(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in lists; 0 for anything else."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(nbytes_of, value)) if isinstance(value, list | tuple) else 0
