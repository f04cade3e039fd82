"""Stamp when each unit of fully_shard has its turn and is waited for, in detailed blocks.

A rank waits before a unit's forward and before its backward for the unit's all-gather; where a reduce-scatter's buffer
is to be used again; and at the end of backward for what is left. On an accelerator the compute stream waits, and the
stamps are events on it; on the host's back end (Gloo) the host itself does. torch has no hooks there. So while a watch
is on, four methods of each parameter group are replaced by ones that take stamps and wait first; torch's own wait that
follows finds nothing left to wait for. Nothing else changes, and they are put back after the block. What is waited for
in all is told by parallel.waits, as in any training.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from scaling.records.format import CollectiveRow
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES, Message
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.guard import around
from scaling.worker.parallel.strategy import BACKWARD, FORWARD, Detail
from scaling.worker.parallel.tap import Seen, Tap
from scaling.worker.parallel.torch_private import awaited_buffer, last_reductions, whole_bytes
from scaling.worker.parallel.waits import Waits

_ALL_GATHER, _REDUCE_SCATTER = KINDS.index("all_gather"), KINDS.index("reduce_scatter")
_REPLACED = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward")


@dataclass(slots=True)
class Turn:
    """A unit's turn in a step, whether or not anything is sent; stamps are tokens."""

    kind: int
    """Whether its parameters are gathered here, or its gradients reduced: an index into settings.run.KINDS."""
    unit: int
    phase: int
    launch: int
    sent: list[Seen] = field(default_factory=list)
    wait: int = 0
    """The rank, or its compute stream, began to wait for it; 0: not yet."""


class Watch:
    """The stamps of one sharded module."""

    def __init__(
        self, groups: Sequence[Any], stamp: Callable[[], int], *, host: bool, weighs: bool = True
    ) -> None:
        """`groups`: the units' FSDPParamGroups, in the order of units. `host`: the host itself waits.

        `weighs`: add up what is gathered in the first step of a block, which then has to go untimed.
        """
        self._groups, self._stamp, self._host, self._weighing = groups, stamp, host, weighs
        self.sizes = list(map(whole_bytes, groups))
        """Bytes of each unit, whole."""
        self._tap: Tap | None = None
        self._gathered: dict[int, Turn] = {}
        """Gathers that nobody has waited for yet, by unit."""
        self._reduced: list[Turn] = []
        """Reductions that nobody has waited for yet, or not for all of them, on an accelerator."""
        self._weighs = False
        self.unsharded_bytes = 0
        """Most bytes of gathered parameters at once, in the first step of a block over several ranks."""
        self._turns: list[Turn] = []

    def streams(self) -> list[Any]:
        """Those on which an accelerator's collectives are started, once a forward has made them."""
        if self._host:
            return []
        contexts = {id(group.comm_ctx): group.comm_ctx for group in self._groups}.values()
        names = ("all_gather_stream", "reduce_scatter_stream", "all_reduce_stream")
        return [getattr(each, name) for each in contexts for name in names if hasattr(each, name)]

    def take(self) -> list[Turn]:
        """The turns that were waited for since the last call."""
        self._weighs = False
        turns, self._turns = self._turns, []
        return turns

    @contextlib.contextmanager
    def on(self, tap: Tap | None = None) -> Iterator[None]:
        """Stamp inside; `tap`: also tell it each collective's unit and phase, and where it is waited for."""
        self._tap = tap
        self._weighs = self._weighing and tap is not None
        self._gathered, self._reduced, self._turns = {}, [], []
        for unit, group in enumerate(self._groups):
            for name in _REPLACED:
                stand = functools.partial(getattr(self, f"_{name}"), group, unit)
                setattr(group, name, around(getattr(group, name), stand))
        try:
            yield
        finally:
            self._tap = None
            for group in self._groups:
                for name in _REPLACED:
                    delattr(group, name)

    def _within(self, unit: int, phase: int) -> contextlib.AbstractContextManager[list[Seen]]:
        return self._tap.within(unit, phase) if self._tap is not None else contextlib.nullcontext([])

    def _unshard(self, group: Any, unit: int, inner: Any, async_op: bool = False) -> None:
        if group._all_gather_result is not None or group.is_unsharded:  # noqa: SLF001
            inner(async_op)
            return
        at = self._launching(group, async_op)
        with self._within(unit, _phase(group)) as seen:
            inner(async_op)
        if group._all_gather_result is not None:  # noqa: SLF001
            self._gathered[unit] = Turn(_ALL_GATHER, unit, 0, at, seen[-1:])
        self._weigh()

    def _launching(self, group: Any, async_op: bool) -> int:
        """When an all-gather can begin: on an accelerator its stream runs ahead of the one that computes."""
        if self._host:
            return self._stamp()
        stream = group.comm_ctx.get_all_gather_streams(async_op, group._training_state)[1]  # noqa: SLF001
        with group.device_handle.stream(stream):
            return self._stamp()

    def _wait_for_unshard(self, group: Any, unit: int, inner: Any) -> None:
        result = group._all_gather_result  # noqa: SLF001
        if result is None:
            inner()
            return
        begin = self._stamp()
        turn = self._gathered.pop(unit, None) or Turn(_ALL_GATHER, unit, 0, begin)
        turn.phase = _phase(group)
        sends = bool(result.all_gather_input_split_sizes)  # over one rank nothing is gathered
        if isinstance(result.all_gather_work, dist.Work):
            result.all_gather_work.wait()
        elif sends and not self._host and result.all_gather_event is not None:
            group.device_handle.current_stream().wait_event(result.all_gather_event)
        # On the host without a work the call itself was the wait.
        waits = sends and not (self._host and result.all_gather_work is None)
        self._waited(begin, [turn], turn.sent if waits else ())
        inner()
        self._weigh()

    def _weigh(self) -> None:
        """Add up what is gathered now. It takes long, so the steps that are timed go without."""
        if self._weighs:
            self.unsharded_bytes = max(self.unsharded_bytes, sum(map(_gathered_bytes, self._groups)))

    def _post_backward(self, group: Any, unit: int, inner: Any, *unused: Any) -> None:
        if not self._host and group.reduce_grads:
            self._wait_for_buffer(group)
        at = self._stamp()
        with self._within(unit, BACKWARD) as seen:
            inner(*unused)
        turn = Turn(_REDUCE_SCATTER, unit, BACKWARD, at, seen)
        if group.reduce_grads and self._host:  # the call itself was the wait
            self._waited(at, [turn], ())
        elif group.reduce_grads:
            self._reduced.append(turn)

    def _wait_for_buffer(self, group: Any) -> None:
        """On an accelerator: the compute stream waits until the oldest reduce-scatter has left its input buffer."""
        awaited = awaited_buffer(group)
        if awaited is not None:
            begin = self._stamp()
            if awaited.event is not None:
                group.device_handle.current_stream().wait_event(awaited.event)
            oldest = [turn for turn in self._reduced if not turn.wait][:1]
            scattered = [seen for turn in oldest for seen in turn.sent if seen.kind == _REDUCE_SCATTER]
            self._waited(begin, oldest, scattered)

    def _finalize_backward(self, group: Any, _unit: int, inner: Any) -> None:
        events = [] if self._host else last_reductions(group)
        if events and self._reduced:  # the first wait covers all, since they come in turn
            begin = self._stamp()
            for event in events:
                group.device_handle.current_stream().wait_event(event)
            self._waited(begin, self._reduced, [seen for turn in self._reduced for seen in turn.sent])
            self._reduced = []
        inner()

    def _waited(self, begin: int, turns: Sequence[Turn], sent: Sequence[Seen]) -> None:
        """The rank, or its stream, has waited for these since `begin`, unless it had before."""
        end = self._stamp() if sent else 0
        for turn in turns:
            if not turn.wait:
                turn.wait = begin
                self._turns.append(turn)
        for seen in sent:
            if not seen.wait:
                seen.wait, seen.resume = begin, end


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
        device: Accelerator,
        *,
        others: Mapping[tuple[int, ...], int] | None = None,
        divided_layers: int = 0,
        waits: Waits | None = None,
    ) -> None:
        """`keys`: of the communicators in the records, by their groups' names; none over one rank.

        `others`: of those that torch made by itself, by their ranks. `divided_layers`: layers that are divided over
        ranks; what these send is a unit of its own behind the others. `waits`: as `Detail` takes it.
        """
        units = len(watch.sizes) + divided_layers
        super().__init__(waits, stamps=STAMPS_A_UNIT * units, waits_behind=False)
        self._others = others or {}
        self._divided_layers = divided_layers
        self._watch, self._keys = watch, dict(keys)
        self._tap = Tap(device.clock)

    @contextlib.contextmanager
    def _seeing(self) -> Iterator[None]:
        """Units are stamped; over several ranks the tap is open."""
        sends = bool(self._keys)
        tapping = self._tap.on() if sends else contextlib.nullcontext()
        with tapping, self._watch.on(self._tap if sends else None):
            yield

    def _rows(self, _forward_end_ns: int) -> list[CollectiveRow]:
        turns = self._watch.take()
        if not self._keys:
            return [self._turn(seq, turn) for seq, turn in enumerate(turns)]
        rows = [self._row(seq, seen) for seq, seen in enumerate(self._tap.take())]
        self.wire = [Message(row.kind, row.bytes, group=row.group) for row in rows if row.unit >= 0]
        return rows

    def _row(self, seq: int, seen: Seen) -> CollectiveRow:
        # Divided layers sent what is waited for and is no unit's. A device's tokens are below 0.
        of_layers = self._divided_layers > 0 and seen.unit < 0 and seen.wait != 0
        phase = seen.phase if of_layers or seen.unit >= 0 else _OTHER
        unit = len(self._watch.sizes) if of_layers else seen.unit
        key, waited = self._key(seen.group), {"wait_ns": seen.wait, "resume_ns": seen.resume}
        return seen.row(seq, key, phase=phase, unit=unit, **waited)

    def _key(self, group: Any) -> int:
        """0: it is none of the strategy's communicators."""
        name = group.group_name
        if name not in self._keys:
            self._keys[name] = self._others.get(tuple(dist.get_process_group_ranks(group)), 0)
        return self._keys[name]

    def _turn(self, seq: int, turn: Turn) -> CollectiveRow:
        row = CollectiveRow(seq, turn.kind, 1, self._watch.sizes[turn.unit], turn.launch, 0, 0)
        return row._replace(phase=turn.phase, unit=turn.unit, wait_ns=turn.wait, resume_ns=turn.wait)

    @property
    def unsharded_bytes(self) -> int:  # type: ignore[override]
        """Most that was gathered at once in the first step of a block."""
        return self._watch.unsharded_bytes
