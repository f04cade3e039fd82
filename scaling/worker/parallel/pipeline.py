"""Watch a schedule of torch.distributed.pipelining: what it computes, and where it waits for messages.

A schedule computes chunks: the forward or the backward of a stage for one microbatch. What one stage has for the next
are messages. It hands them to one function of torch's module, `_batch_p2p`, and waits for the works that this returns;
torch has no hooks there. So methods of the schedule and its stages are replaced by ones that tell of chunks, and while
messages are watched the stages' methods that make them, and that function, by ones that take stamps. Nothing else
changes, and all are put back.

A stamp of a wait is taken before and behind the work's own wait: on an accelerator an event on the stream that waits.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from scaling.spec.run import KINDS
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.strategy import BACKWARD, FORWARD, Wait

_MODULE = "torch.distributed.pipelining.schedules"
_CHUNKS = {
    "forward_one_chunk": FORWARD,
    "backward_one_chunk": BACKWARD,
    "backward_weight_one_chunk": BACKWARD,
}
"""Methods of a stage that compute a chunk, and its phase."""
_MAKING = {
    "get_fwd_recv_ops": FORWARD,
    "get_fwd_send_ops": FORWARD,
    "get_bwd_recv_ops": BACKWARD,
    "get_bwd_send_ops": BACKWARD,
}
"""Methods of a stage that make messages, and whether they carry activations or gradients."""
_HANDED = "_batch_p2p"
_SEND, _RECV = KINDS.index("send"), KINDS.index("recv")


def is_schedule(model: Any) -> bool:
    """Whether `model` is a schedule; torch's module is not loaded for it."""
    kind = getattr(sys.modules.get(_MODULE), "_PipelineSchedule", None)
    return kind is not None and isinstance(model, kind)


@dataclass(slots=True, kw_only=True)
class Posted:
    """A message that this rank sends or receives. Stamps are tokens; 0: not taken."""

    kind: int
    """Index into spec.run.KINDS."""
    peer: int
    """The other rank, by its place in the schedule's group."""
    bytes: int
    phase: int
    """FORWARD: it carries activations; BACKWARD: gradients."""
    enqueue_ns: int
    launch: int
    wait: int = 0
    resume: int = 0


class _Work:
    """torch's work of messages; waiting for it is stamped."""

    def __init__(self, inner: Any, schedule: Schedule, posted: Sequence[Posted]) -> None:
        self._inner, self._schedule, self._posted = inner, schedule, posted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def wait(self, *args: Any, **named: Any) -> Any:
        """As torch's."""
        with self._schedule.waiting(self._posted):
            return self._inner.wait(*args, **named)


class Schedule:
    """One schedule on this rank."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule
        self.stages: list[Any] = list(getattr(schedule, "_stages", None) or [schedule._stage])  # noqa: SLF001
        self.name = type(schedule).__name__
        self.group: Any = self.stages[0].group or dist.group.WORLD
        self.phase = FORWARD
        """Of the chunk that began last."""
        self._stamp: Callable[[], int] = now_ns
        self._made: dict[int, int] = {}
        """Phase of each message that was made and not handed over, by its id."""
        self._posted: list[Posted] = []
        self._waits: list[Wait] = []

    @property
    def known(self) -> bool:
        """Whether this version of torch hands messages over as is expected here."""
        return callable(getattr(sys.modules.get(_MODULE), _HANDED, None))

    @property
    def peers(self) -> list[int]:
        """Places in the group of the ranks that it exchanges messages with."""
        found = set()
        for stage in self.stages:
            rank_of = getattr(stage, "stage_index_to_group_rank", {})
            beside = (stage.stage_index - 1, stage.stage_index + 1)
            found |= {
                rank_of.get(index, index % stage.group_size)
                for index in beside
                if 0 <= index < stage.num_stages
            }
        return sorted(found - {self.stages[0].group_rank})

    @contextlib.contextmanager
    def telling(
        self, begun: Callable[[], None], chunk: Callable[[int], None], ended: Callable[[], None]
    ) -> Iterator[None]:
        """Inside, `begun` and `ended` are called around each training step, `chunk` where a phase begins."""

        def step(inner: Any, *args: Any, **named: Any) -> Any:
            self.phase = FORWARD
            begun()
            answer = inner(*args, **named)
            ended()
            return answer

        def computed(phase: int, inner: Any, *args: Any, **named: Any) -> Any:
            if phase != self.phase:
                self.phase = phase
                chunk(phase)
            return inner(*args, **named)

        with contextlib.ExitStack() as replaced:
            replaced.enter_context(_instead(self._schedule, "step", step))
            for stage in self.stages:
                for name, phase in _CHUNKS.items():
                    replaced.enter_context(_instead(stage, name, functools.partial(computed, phase)))
            yield

    @contextlib.contextmanager
    def watching(self, stamp: Callable[[], int]) -> Iterator[None]:
        """Inside, messages and waits are stamped."""
        self._stamp, self._made, self._posted, self._waits = stamp, {}, [], []
        with contextlib.ExitStack() as replaced:
            for stage in self.stages:
                for name, phase in _MAKING.items():
                    replaced.enter_context(_instead(stage, name, functools.partial(self._make, phase)))
            replaced.enter_context(_instead(sys.modules[_MODULE], _HANDED, self._hand_over))
            yield

    def take(self) -> tuple[list[Posted], list[Wait]]:
        """What was stamped since the last call, in order."""
        found, self._posted, self._waits = (self._posted, self._waits), [], []
        return found

    @contextlib.contextmanager
    def waiting(self, posted: Sequence[Posted]) -> Iterator[None]:
        """Around a wait for messages."""
        begin = self._stamp()
        yield
        end = self._stamp()
        self._waits.append(Wait(self.phase, begin, end))
        for one in posted:
            one.wait, one.resume = begin, end

    def _make(self, phase: int, inner: Any, *args: Any, **named: Any) -> Any:
        made = inner(*args, **named)
        self._made |= {id(one): phase for one in made}
        return made

    def _hand_over(self, inner: Any, messages: Any, *args: Any, **named: Any) -> Any:
        made = [(one, self._made.pop(id(one))) for one in messages if id(one) in self._made]
        if not made or len(made) < len(messages):  # another schedule's
            return inner(messages, *args, **named)
        enqueue, launch = now_ns(), self._stamp()
        works = inner(messages, *args, **named)
        posted = [
            Posted(
                kind=_SEND if one.op is dist.isend else _RECV,
                peer=dist.get_group_rank(one.group or self.group, one.peer),
                bytes=one.tensor.nbytes,
                phase=phase,
                enqueue_ns=enqueue,
                launch=launch,
            )
            for one, phase in made
        ]
        self._posted += posted
        if not isinstance(works, list):
            return _Work(works, self, posted)
        if len(works) == len(posted):
            return [_Work(work, self, [one]) for work, one in zip(works, posted, strict=True)]
        return [_Work(work, self, posted if work is works[-1] else ()) for work in works]


@contextlib.contextmanager
def _instead(where: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Inside, `where.name` is `replacement`, which gets the original as its first argument."""
    own = vars(where).get(name)
    original = getattr(where, name)
    setattr(where, name, functools.wraps(original)(functools.partial(replacement, original)))
    try:
        yield
    finally:
        if own is None:
            delattr(where, name)
        else:
            setattr(where, name, own)
