"""Stamp when each unit of fully_shard has its turn and is waited for, in probe blocks.

A rank waits before a unit's forward and before its backward for the unit's all-gather; where a reduce-scatter's buffer
is to be used again; and at the end of backward for what is left. On an accelerator the compute stream waits, and the
stamps are events on it; on the host's back end (Gloo) the host itself does. torch has no hooks there. So while a watch
is on, four methods of each parameter group are replaced by ones that take stamps and wait first; torch's own wait that
follows finds nothing left to wait for. Nothing else changes, and they are put back after the block. What is waited for
in all is told by parallel.waits, as in any training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from scaling.records.format import CollectiveRow
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES, Message
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.guard import around
from scaling.worker.parallel.strategy import BACKWARD, FORWARD, Detail, Take, Taken
from scaling.worker.parallel.tap import Seen, Tap
from scaling.worker.parallel.torch_private import awaited_buffer, last_reductions
from scaling.worker.parallel.waits import Waits

_ALL_GATHER, _REDUCE_SCATTER = KINDS.index("all_gather"), KINDS.index("reduce_scatter")
_REPLACED = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward")


class Mark(NamedTuple):
    """A unit's turn in a step, whether or not anything is sent; stamps are tokens."""

    reduced: bool
    """Whether its gradients are reduced here, rather than its parameters gathered."""
    phase: int
    unit: int
    launch: int
    wait: int


class Watch:
    """The stamps of one sharded module."""

    def __init__(
        self, groups: Sequence[Any], stamp: Callable[[], int], *, host: bool, weighs: bool = True
    ) -> None:
        """`groups`: the units' FSDPParamGroups, in the order of units. `host`: the host itself waits.

        `weighs`: add up what is gathered in the first step of a block, which then has to go untimed.
        """
        self._groups, self._stamp, self._host, self._weighing = groups, stamp, host, weighs
        self._tap: Tap | None = None
        self._gathered: dict[int, Seen] = {}
        self._reduced: list[Seen] = []
        """Reductions that nobody has waited for yet, on an accelerator."""
        self._launched: dict[int, int] = {}
        self._turns: list[tuple[int, int]] = []
        """Units that have begun to reduce and nobody has waited for, with when, on an accelerator."""
        self._weighs = False
        self.unsharded_bytes = 0
        """Most bytes of gathered parameters at once, in the first step of a block that tells collectives apart."""
        self.marks: list[Mark] = []

    def streams(self) -> list[Any]:
        """Those on which an accelerator's collectives are started, once a forward has made them."""
        contexts = {id(group.comm_ctx): group.comm_ctx for group in self._groups}.values()
        names = ("all_gather_stream", "reduce_scatter_stream", "all_reduce_stream")
        return [
            getattr(context, name)
            for context in contexts
            for name in names
            if not self._host and hasattr(context, name)
        ]

    def take(self) -> list[Mark]:
        """The marks since the last call."""
        self._weighs = False
        marks, self.marks = self.marks, []
        return marks

    @contextlib.contextmanager
    def on(self, tap: Tap | None = None) -> Iterator[None]:
        """Stamp inside; `tap`: also tell it each collective's unit and phase, and where it is waited for."""
        self._tap = tap
        self._weighs = self._weighing and tap is not None
        self._gathered, self._reduced, self._launched, self._turns = {}, [], {}, []
        self.marks = []
        for unit, group in enumerate(self._groups):
            for name in _REPLACED:
                method = getattr(self, f"_{name}")
                setattr(group, name, around(getattr(group, name), _on_unit(method, group, unit)))
        try:
            yield
        finally:
            self._tap = None
            for group in self._groups:
                for name in _REPLACED:
                    delattr(group, name)

    @contextlib.contextmanager
    def _collectives_of(self, unit: int, phase: int) -> Iterator[list[Seen]]:
        """Collectives inside belong to a unit; they are in the list once it ends."""
        tap = self._tap
        inside: list[Seen] = []
        if tap is None:
            yield inside
            return
        before, place = (tap.unit, tap.phase), tap.count
        tap.unit, tap.phase = unit, phase
        try:
            yield inside
        finally:
            tap.unit, tap.phase = before
            inside += tap.since(place)

    def _unshard(self, inner: Any, group: Any, unit: int, async_op: bool = False) -> None:
        if group._all_gather_result is not None or group.is_unsharded:  # noqa: SLF001
            inner(async_op)
            return
        at = self._launching(group, async_op)
        with self._collectives_of(unit, _phase(group)) as seen:
            inner(async_op)
        if group._all_gather_result is not None:  # noqa: SLF001
            self._launched[unit] = at
            if seen:
                self._gathered[unit] = seen[-1]
        self._weigh()

    def _launching(self, group: Any, async_op: bool) -> int:
        """When an all-gather can begin: on an accelerator its stream runs ahead of the one that computes."""
        if self._host:
            return self._stamp()
        stream = group.comm_ctx.get_all_gather_streams(async_op, group._training_state)[1]  # noqa: SLF001
        with group.device_handle.stream(stream):
            return self._stamp()

    def _wait_for_unshard(self, inner: Any, group: Any, unit: int) -> None:
        result = group._all_gather_result  # noqa: SLF001
        if result is None:
            inner()
            return
        begin, phase, seen = self._stamp(), _phase(group), self._gathered.pop(unit, None)
        self.marks.append(Mark(False, phase, unit, self._launched.pop(unit, begin), begin))
        sends = bool(result.all_gather_input_split_sizes)  # over one rank nothing is gathered
        if isinstance(result.all_gather_work, dist.Work):
            result.all_gather_work.wait()
        elif sends and not self._host and result.all_gather_event is not None:
            group.device_handle.current_stream().wait_event(result.all_gather_event)
        if sends and not (self._host and result.all_gather_work is None):  # else the call itself was the wait
            self._waited(begin, [seen] if seen else [])
        inner()
        self._weigh()

    def _weigh(self) -> None:
        """Add up what is gathered now. It takes long, so the steps that are timed go without."""
        if self._weighs:
            self.unsharded_bytes = max(self.unsharded_bytes, sum(map(_gathered_bytes, self._groups)))

    def _post_backward(self, inner: Any, group: Any, unit: int, *unused: Any) -> None:
        if not self._host and group.reduce_grads:
            self._wait_for_buffer(group)
        at = self._stamp()
        with self._collectives_of(unit, BACKWARD) as seen:
            inner(*unused)
        if group.reduce_grads and self._host:  # the call itself was the wait
            self.marks.append(Mark(True, BACKWARD, unit, at, at))
        elif group.reduce_grads:
            self._turns.append((unit, at))
        if not self._host:
            self._reduced += seen

    def _wait_for_buffer(self, group: Any) -> None:
        """On an accelerator: the compute stream waits until the oldest reduce-scatter has left its input buffer."""
        awaited = awaited_buffer(group)
        if awaited is not None:
            begin = self._stamp()
            if awaited.event is not None:
                group.device_handle.current_stream().wait_event(awaited.event)
            scattered = next((s for s in self._reduced if s.kind == _REDUCE_SCATTER and not s.wait), None)
            self._waited(begin, [scattered] if scattered else [])
            self._reduced_by(begin, self._turns[:1])

    def _finalize_backward(self, inner: Any, group: Any, _unit: int) -> None:
        events = [] if self._host else last_reductions(group)
        if events and (self._reduced or self._turns):  # the first wait covers all, since they come in turn
            begin = self._stamp()
            for event in events:
                group.device_handle.current_stream().wait_event(event)
            self._waited(begin, [call for call in self._reduced if call.wait == 0])
            self._reduced = []
            self._reduced_by(begin, self._turns)
        inner()

    def _reduced_by(self, begin: int, turns: Sequence[tuple[int, int]]) -> None:
        """The stream waits for these units' reductions from here on."""
        self.marks += [Mark(True, BACKWARD, unit, at, begin) for unit, at in turns]
        self._turns = self._turns[len(turns) :]

    def _waited(self, begin: int, seen: Sequence[Seen]) -> None:
        end = self._stamp()
        for call in seen:
            call.wait, call.resume = begin, end


def _on_unit(method: Callable[..., Any], group: Any, unit: int) -> Callable[..., Any]:
    """`method(inner, group, unit, ...)` as a replacement of `inner(...)`."""
    return lambda inner, *args, **named: method(inner, group, unit, *args, **named)


def _gathered_bytes(group: Any) -> int:
    """Memory of a unit's gathered parameters, and of the buffer into which they are being gathered."""
    outputs = [tensor for p in group.fsdp_params for tensor in p.all_gather_outputs]
    result = group._all_gather_result  # noqa: SLF001
    outputs += [result.all_gather_output] if result is not None else []
    return sum(tensor.untyped_storage().size() for tensor in outputs)


def _phase(group: Any) -> int:
    return FORWARD if group._training_state == TrainingState.FORWARD else BACKWARD  # noqa: SLF001


_OTHER = PHASES.index("other")
STAMPS_A_UNIT = 23
"""In forward and backward: three collectives with launch, start and end, and twice begin and end of their waits."""


class UnitProbe(Detail):
    """The stamps of one arm. Over one rank nothing is sent: its rows have a unit's turns, without launch and end."""

    def __init__(
        self,
        watch: Watch,
        keys: Mapping[str, int],
        sizes: Sequence[int],
        device: Accelerator,
        *,
        detailed: bool,
        others: Mapping[tuple[int, ...], int] | None = None,
        divided_layers: int = 0,
        waits: Waits | None = None,
    ) -> None:
        """`keys`: of the communicators in the records, by their groups' names; none over one rank.

        `others`: of those that torch made by itself, by their ranks. `divided_layers`: layers that are divided over
        ranks; what these send is a unit of its own behind the others. `waits`: tells the steps' waits; None: another
        does.
        """
        self._others = others or {}
        self._divided_layers = divided_layers
        self._waits = waits if keys else None
        self._watch, self._keys, self._sizes, self._detailed = watch, dict(keys), sizes, detailed
        super().__init__()
        self._tap = Tap(device.clock)

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        """Inside, units and waits are stamped; in a detailed block over several ranks the tap is open."""
        sends = self._detailed and bool(self._keys)
        with (
            self._tap.on() if sends else contextlib.nullcontext(),
            self._watch.on(self._tap if sends else None),
            self._waits.on() if self._waits else contextlib.nullcontext(),
        ):
            yield self._take

    def _take(self, _forward_end_ns: int) -> Taken:
        marks, waits = self._watch.take(), self._waits.take() if self._waits else []
        if not self._detailed:
            return Taken(None, waits)
        if not self._keys:
            return Taken([self._turn(seq, mark) for seq, mark in enumerate(marks)], waits)
        rows = [self._row(seq, seen) for seq, seen in enumerate(self._tap.take())]
        self.wire = [Message(row.kind, row.bytes, group=row.group) for row in rows if row.unit >= 0]
        return Taken(rows, waits)

    def _row(self, seq: int, seen: Seen) -> CollectiveRow:
        of_layers = self._of_layers(seen)
        phase = seen.phase if of_layers or seen.unit >= 0 else _OTHER
        unit = len(self._sizes) if of_layers else seen.unit
        return seen.waited_row(seq, self._key(seen.group), phase=phase, unit=unit)

    def _of_layers(self, seen: Seen) -> bool:
        """Whether divided layers sent it: it is waited for, and is no unit's. A device's tokens are below 0."""
        return self._divided_layers > 0 and seen.unit < 0 and seen.wait != 0

    def _key(self, group: Any) -> int:
        """0: it is none of the strategy's communicators."""
        name = group.group_name
        if name not in self._keys:
            self._keys[name] = self._others.get(tuple(dist.get_process_group_ranks(group)), 0)
        return self._keys[name]

    def _turn(self, seq: int, mark: Mark) -> CollectiveRow:
        return CollectiveRow(
            seq=seq,
            kind=_REDUCE_SCATTER if mark.reduced else _ALL_GATHER,
            group=1,
            bytes=self._sizes[mark.unit],
            ready_ns=mark.launch,
            launch_ns=0,
            done_ns=0,
            phase=mark.phase,
            unit=mark.unit,
            wait_ns=mark.wait,
            resume_ns=mark.wait,
        )

    def discard(self) -> None:
        """Forget the steps so far."""
        self._watch.take()
        self._tap.take()
        if self._waits:
            self._waits.take()

    @property
    def stamps(self) -> int:  # type: ignore[override]
        """For every unit and every divided layer, a step's turns."""
        return STAMPS_A_UNIT * (len(self._sizes) + self._divided_layers)

    @property
    def unsharded_bytes(self) -> int:  # type: ignore[override]
        """Most that was gathered at once in the first step of a block."""
        return self._watch.unsharded_bytes
