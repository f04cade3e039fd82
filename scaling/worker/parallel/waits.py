"""Stamp where a rank waits for communication: every window, whoever started it.

Waits can only be left out of a rank's own time where they are seen. A collective is claimed when a wait for it is seen,
or for a later one of its group, which ends behind it. It stays unclaimed if nobody waits for it until the end of the
next step, or if the loop asks whether it is done before it waits: between two such questions the rank may have waited
or computed, and nobody can tell which. On an accelerator a stream other than the one that computes carries what it
waits for, until the stream that computes waits for it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from scaling.settings.topology import CPU
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.collectives import Exchange
from scaling.worker.parallel.guard import around, untraced
from scaling.worker.parallel.strategy import BUFFERS, Wait, phase_now
from scaling.worker.parallel.tap import SELECT, Tap, nbytes_of
from scaling.worker.parallel.torch_private import in_backward

MESSAGES = ("send", "recv", "recv_anysource")
END_COALESCING = "_end_coalescing"
"""How torch.distributed calls of a process group in Python are named."""
_CALLS_OF_GROUPS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "barrier"),
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "alltoall", "alltoall_base"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single"),
    *("reduce_scatter_single_coalesced", "monitored_barrier", *MESSAGES, END_COALESCING),
)
"""What torch.distributed calls of a process group in Python; older torch lacks a few."""


@dataclass(slots=True, eq=False)
class Begun:
    """A collective or message that the loop has begun."""

    group: str
    bytes: int
    alone: bool
    """Whether it is a message, whose end tells nothing of others."""
    place: int = 0
    """Among the calls of its group."""
    claimed: bool = False
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
    """The collectives that were begun in the last two steps. `stream` below is None for the one that computes.

    A step may begin thousands and then wait for each, so a wait looks only at those since the wait before it.
    """

    def __init__(self) -> None:
        self._works: weakref.WeakKeyDictionary[Any, Begun] = weakref.WeakKeyDictionary()
        self._asked: list[Begun] = []
        """Those whose future was asked for."""
        self._calls: defaultdict[str, list[Begun]] = defaultdict(list)
        """All, by their group."""
        self._awaited: dict[tuple[str, int | None], int] = {}
        """How many of a group's calls a stream has waited for, from the first on."""
        self._streams: dict[int, dict[Begun, None]] = {}
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
        if name == END_COALESCING:  # its work is that of the messages before it
            for other in itertools.takewhile(lambda call: call.alone, reversed(self._calls[group])):
                other.alone = False
        self._now.append(noted)
        self._queue(noted)
        if isinstance(work, dist.Work):
            self._works[work] = noted
        return noted

    def waited(self, work: Any, stream: int | None) -> None:
        """A stream, or the host, waits for a work."""
        if (last := self._works.get(work)) is not None:
            self.claim(self._up_to(last, stream), stream)

    def asked(self, work: Any) -> None:
        """The loop takes the future of a work."""
        if (noted := self._works.get(work)) is not None:
            self._asked.append(noted)

    def of_futures(self) -> list[Begun]:
        """Those that a future may stand for."""
        self._asked = [noted for noted in self._asked if not noted.claimed]
        return self._asked

    def polled(self, work: Any, *, done: bool) -> None:
        """The loop asks whether a work is done."""
        noted = self._works.get(work)
        if noted is None or noted.claimed:
            return
        if done:
            self.claim(self._up_to(noted, None), None)
        else:
            noted.polled = True

    def on_stream(self, stream: int) -> list[Begun]:
        """What a stream sends or waits for, and the one that computes has not waited for."""
        carried = [noted for noted in self._streams.get(stream, ()) if not noted.claimed]
        self._streams[stream] = dict.fromkeys(carried)
        return carried

    def recorded(self, event: Any, stream: int) -> None:
        """An event is recorded on a stream."""
        self._events[event] = self.on_stream(stream)

    def at_event(self, event: Any) -> list[Begun]:
        """What was on an event's stream before it, and the one that computes has not waited for."""
        return [noted for noted in self._events.get(event, ()) if not noted.claimed]

    def claim(self, some: list[Begun], stream: int | None) -> None:
        """A stream waits for these."""
        if stream is not None:
            self._streams.setdefault(stream, {}).update(dict.fromkeys(some))
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
        self._before, self._now, self._asked = self._now, [], self.of_futures()
        self._calls.clear()
        self._awaited.clear()
        for noted in self._before:
            self._queue(noted)

    def traffic(self) -> Traffic:
        """The mean step's."""
        sent, unclaimed, polled = self._sums
        steps = max(1, self._steps)
        return Traffic(sent // steps, -(-unclaimed // steps), polled)

    def _queue(self, noted: Begun) -> None:
        calls = self._calls[noted.group]
        noted.place = len(calls)
        calls.append(noted)

    def _up_to(self, last: Begun, stream: int | None) -> list[Begun]:
        """A collective with those of its group that end before it, or a message; less what the stream waited for."""
        calls, behind = self._calls[last.group], last.place + 1
        if calls[last.place : behind] != [last]:  # it was begun more than two steps ago
            return []
        if last.alone:
            return [last]
        begin = self._awaited.get((last.group, stream), 0)
        self._awaited[last.group, stream] = max(begin, behind)
        return [noted for noted in calls[begin:behind] if not (noted.alone or noted.claimed)]


class Waits:
    """Every window in which a training waits for communication. One is open at a time in a process.

    Python waits by `Work.wait`, by `Future.wait`, by the operator `wait_tensor` (DTensor), and inside of calls that
    are not asynchronous; DDP's broadcast of buffers waits in C++. These are replaced while it is open. On the host's
    back ends (Gloo) a call may block as well, so it counts from its begin to its end. On an accelerator the stamps are
    events on the stream that computes, with nothing between them where that stream waits for nothing. It also waits
    for other streams and for events: that counts where these carry a collective. Waits of other threads are not the
    loop's. `claims` tells what nobody was seen to wait for.
    """

    def __init__(self, device: Accelerator, *, reduces_behind: bool = False) -> None:
        """`reduces_behind`: what backward begins is waited for in C++, by DDP's reducer."""
        self._stamp, self._host, self._type = device.clock.stamp, device.type == CPU, device.type
        self._reduces_behind = reduces_behind
        self._thread = threading.get_ident()
        self._stream: torch.Stream | None = None
        self._windows: list[Wait] = []
        self._waiting = threading.local()
        self.claims = Claims()

    @contextlib.contextmanager
    def on(self) -> Iterator[Waits]:
        """Stamp inside."""
        self._windows, self._stream = [], None if self._host else torch.accelerator.current_stream()
        places = [(place, name, stand) for place, name, stand in self._places() if hasattr(place, name)]
        before = [(place, name, vars(place).get(name)) for place, name, _ in places]  # bound to nothing
        library = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]
        operator = torch.ops._c10d_functional.wait_tensor.default  # noqa: SLF001

        def wait_tensor(keys: Any, tensor: torch.Tensor) -> Any:
            return operator.redispatch(keys.remove(SELECT), tensor)

        kernel = around(wait_tensor, self._tensor_waited)
        library.impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)  # type: ignore[no-untyped-call]
        for place, name, stand in places:
            setattr(place, name, untraced(around(getattr(place, name), stand)))
        try:
            yield self
        finally:
            library._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001
            for place, name, inner in before:
                delattr(place, name) if inner is None else setattr(place, name, inner)

    def take(self) -> list[Wait]:
        """The windows since the last call, at the end of a step."""
        self.claims.end_step()
        windows, self._windows = self._windows, []
        return windows

    def _places(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """What is replaced: where, by what name, and what stands around it."""
        yield dist.Work, "wait", self._work_waited
        yield Exchange, "wait", self._work_waited
        yield dist.Work, "is_completed", self._work_polled
        yield dist.Work, "get_future", self._future_asked
        yield torch._C.Future, "wait", self._future_waited  # noqa: SLF001
        yield torch._C.Future, "done", self._future_polled  # noqa: SLF001
        yield dist, "_broadcast_coalesced", functools.partial(self._timed, phase=BUFFERS)
        for name in _CALLS_OF_GROUPS:
            yield dist.ProcessGroup, name, functools.partial(self._begun, name)
        module = None if self._host else torch.get_device_module(self._type)
        stream, event = getattr(module, "Stream", None), getattr(module, "Event", None)
        if isinstance(stream, type) and stream is not torch.Stream:  # torch's own cannot be changed
            yield stream, "wait_stream", self._stream_waited
            yield stream, "wait_event", self._event_waited
        if isinstance(event, type) and event is not torch.Event:
            yield event, "record", self._event_recorded
            yield event, "wait", self._event_waits

    def _begun(self, name: str, call: Callable[..., Any], group: Any, *args: Any, **named: Any) -> Any:
        """A call that starts communication: it blocks the host, or makes the current stream go through it."""
        waits = not getattr(args[-1] if args else None, "asyncOp", True)
        timed = functools.partial(self._timed, call) if self._host or waits else call
        work = timed(group, *args, **named)
        if self._in_loop():
            noted, elsewhere = self.claims.begun(name, group.group_name, args, work), self._elsewhere()
            if (waits and not self._host) or (self._reduces_behind and in_backward()):
                self.claims.claim([noted], elsewhere if waits else None)
        return work

    def _tensor_waited(self, call: Callable[..., Any], keys: Any, tensor: torch.Tensor) -> Any:
        """The operator waits for a functional collective: DTensor's, and those of tensor parallel."""
        waited = len(self._windows)
        result = self._timed(call, keys, tensor)
        seen = Tap.now.waited_for(tensor.data_ptr()) if Tap.now is not None else None
        if seen is not None and len(self._windows) > waited:
            seen.phase, seen.wait, seen.resume = self._windows[-1]
        return result

    def _work_waited(self, call: Callable[..., Any], work: Any, *args: Any, **named: Any) -> Any:
        result = self._timed(call, work, *args, **named)
        if self._in_loop():
            self.claims.waited(work, self._elsewhere())
        return result

    def _work_polled(self, call: Callable[..., Any], work: Any) -> Any:
        done = call(work)
        if self._in_loop():
            self.claims.polled(work, done=done)
        return done

    def _future_asked(self, call: Callable[..., Any], work: Any) -> Any:
        self.claims.asked(work)
        return call(work)

    def _future_waited(self, call: Callable[..., Any], future: Any) -> Any:
        result = self._timed(call, future)
        if self._in_loop():
            self.claims.claim(self.claims.of_futures(), self._elsewhere())
        return result

    def _future_polled(self, call: Callable[..., Any], future: Any) -> Any:
        done = call(future)
        for noted in self.claims.of_futures() if self._in_loop() and not done else ():
            noted.polled = True
        return done

    def _stream_waited(self, call: Callable[..., Any], waiting: Any, stream: Any) -> Any:
        return self._passed(waiting, self.claims.on_stream(stream.stream_id), call, waiting, stream)

    def _event_waited(self, call: Callable[..., Any], waiting: Any, event: Any) -> Any:
        return self._passed(waiting, self.claims.at_event(event), call, waiting, event)

    def _event_waits(self, call: Callable[..., Any], event: Any, stream: Any = None) -> Any:
        waiting = torch.accelerator.current_stream() if stream is None else stream
        return self._passed(waiting, self.claims.at_event(event), call, event, stream)

    def _event_recorded(self, call: Callable[..., Any], event: Any, stream: Any = None) -> Any:
        on = torch.accelerator.current_stream() if stream is None else stream
        self.claims.recorded(event, on.stream_id)
        return call(event, stream)

    def _passed(self, waiting: Any, awaited: list[Begun], call: Callable[..., Any], *args: Any) -> Any:
        """A stream waits for another one. The one that computes is stamped where it is the current one."""
        if not awaited or not self._in_loop() or getattr(self._waiting, "inside", False):
            return call(*args)
        if waiting != self._stream:
            result = call(*args)
            self.claims.claim(awaited, waiting.stream_id)
            return result
        if self._elsewhere() is not None:  # no stamp is possible
            return call(*args)
        result = self._timed(call, *args)
        self.claims.claim(awaited, None)
        return result

    def _timed(self, call: Callable[..., Any], *args: Any, phase: int | None = None, **named: Any) -> Any:
        if getattr(self._waiting, "inside", False) or not self._in_loop() or self._elsewhere() is not None:
            return call(*args, **named)
        phase = phase_now() if phase is None else phase
        self._waiting.inside, begin = True, self._stamp()
        try:
            return call(*args, **named)
        finally:
            self._waiting.inside = False
            self._windows.append(Wait(phase, begin, self._stamp()))

    def _in_loop(self) -> bool:
        """Whether this is the loop's thread, or one of autograd's for it."""
        return threading.get_ident() == self._thread or in_backward()

    def _elsewhere(self) -> int | None:
        """The id of the current stream where it is not the one that computes."""
        if self._stream is None:
            return None
        current = torch.accelerator.current_stream()
        return None if current == self._stream else current.stream_id


class Broadcasts(Waits):
    """DDP's broadcasts of buffers alone, where a step waits in no other call; nothing else is replaced."""

    def _places(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        yield dist, "_broadcast_coalesced", functools.partial(self._timed, phase=BUFFERS)
