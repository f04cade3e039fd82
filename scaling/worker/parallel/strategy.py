"""The seam between how a model is spread over ranks and all that measures it.

A strategy makes the module that is trained over ranks, for one use and for as long as its blocks need it. It says how
gradients are accumulated, what a detailed block records, and where the rank waits for communication. Nothing outside
this folder asks which strategy it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from scaling.records.format import CollectiveRow, StepRow
from scaling.settings.schedule import PHASES, Message
from scaling.worker.parallel.torch_private import in_backward

if TYPE_CHECKING:
    from scaling.worker.parallel.waits import Waits

FORWARD, BACKWARD = PHASES.index("forward"), PHASES.index("backward")
BUFFERS = -2
"""Phase of a Wait for DDP's broadcast of buffers."""


def phase_now() -> int:
    """Whether this thread computes forward or backward."""
    return BACKWARD if in_backward() else FORWARD


class Wait(NamedTuple):
    """A window in which a rank waits for communication; stamps are tokens, then ns."""

    phase: int
    """FORWARD (whatever is not in backward), BACKWARD or BUFFERS."""
    begin: int
    end: int


class Taken(NamedTuple):
    """What one step left beside its own stamps, all of them tokens."""

    collectives: list[CollectiveRow] | None
    """None where the block records none."""
    waits: Sequence[Wait] = ()
    """Where the rank waited, but for the time behind backward's compute (Detail.waits_behind)."""


def resolved(waits: Sequence[Wait], resolve: Callable[[list[int]], list[int]]) -> list[Wait]:
    """Windows with ns instead of tokens."""
    return [Wait(wait.phase, *resolve([wait.begin, wait.end])) for wait in waits]


def done_in_time(row: CollectiveRow, step: StepRow) -> CollectiveRow:
    """A row, ns, done with backward at the latest if it is of forward or backward, else with the step; 0: not known.

    Torch wakes who waits for a collective before it calls back, so a host's stamp of the end may come too late.
    """
    latest = step.sync_end_ns if row.phase in (FORWARD, BACKWARD) else step.end_ns
    if row.done_ns <= latest:
        return row
    return row._replace(done_ns=latest, resume_ns=min(row.resume_ns, latest))


Behind = Sequence[tuple[int, int]]
"""End of backward's compute and of backward, of each micro-step whose gradients are reduced behind it."""
Take = Callable[[int], Taken]
"""Given the host time at which the step's last forward ended, returns what the step left."""


class Detail:
    """What the stamped blocks of an arm record of communication: where the rank waits. Subclasses add collectives."""

    unsharded_bytes = 0
    """Most bytes of gathered parameters that the rank held at once; 0 where nothing is gathered."""

    def __init__(self, waits: Waits | None = None, *, stamps: int = 0, waits_behind: bool = True) -> None:
        """`waits`: tells the steps' waits; None: there are none, or another tells them.

        `stamps`: most that are taken in a step. `waits_behind`: the rank waits behind backward's compute as well.
        """
        self._waits, self._stamps, self.waits_behind = waits, stamps, waits_behind
        self.wire: list[Message] = []
        """The collectives of the step taken last, in the order of launch."""

    @property
    def stamps(self) -> int:
        """Largest number of stamps that it takes in a step."""
        return self._stamps

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        """Inside, `take` can be called after each step."""
        with self._waits.on() if self._waits else contextlib.nullcontext(), self._seeing():
            yield self._take

    def _seeing(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, collectives are seen."""
        return contextlib.nullcontext()

    def _take(self, forward_end_ns: int) -> Taken:
        return Taken(self._rows(forward_end_ns), self._waits.take() if self._waits else ())

    def _rows(self, forward_end_ns: int) -> list[CollectiveRow] | None:  # noqa: ARG002
        """The step's collectives, with tokens as stamps; None: the block records none."""
        return None

    def all_of(
        self,
        rows: Sequence[CollectiveRow],
        behind: Behind,  # noqa: ARG002
        waits: Sequence[Wait],  # noqa: ARG002
    ) -> list[CollectiveRow]:
        """A step's rows, as taken, with what its own stamps and its waits show; all tokens, or all ns."""
        return list(rows)

    def parameters(self, begin_ns: Sequence[int]) -> list[tuple[int, int]]:  # noqa: ARG002
        """BlockRecord.parameters, given when the steps taken last began; empty where ready times are not known."""
        return []


class Parallelized(Protocol):
    """A module that is trained over ranks."""

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer

    @property
    def buckets(self) -> list[int]:
        """Bytes of the buckets or sharded units, in the order of reduction, once the first steps have settled them."""

    @property
    def accumulate(self) -> Callable[[bool], contextlib.AbstractContextManager[Any]]:
        """Around a micro-step, given whether it is the last."""

    def settle(self) -> None:
        """After the first steps: make it like one that has trained for long."""

    def withheld(self) -> str:
        """Why its collectives are not to be stamped (BlockRecord.withheld); all of its ranks ask at once."""

    def detail(self, *, detailed: bool) -> Detail:
        """What a stamped block records."""

    def bytes(self) -> dict[str, int]:
        """What this rank holds, by `parameters`, `gradients`, `optimizer`."""


class Strategy(Protocol):
    """How a model is spread over ranks."""

    wire_dtype: torch.dtype
    """Type of the elements that are reduced."""
    steps_alone: bool
    """Whether the module over its ranks can take a step that needs none of them; else it takes a mesh of one rank."""

    @property
    def module(self) -> Callable[[str], torch.nn.Module]:
        """Given a use, the module without any strategy; it is compiled for each use, which has graphs of its own."""

    def apply(self, use: str, *, alone: bool, sync: bool = True) -> Parallelized:
        """The module over its ranks, or over a mesh of one rank (`alone`).

        `sync`: compare and send the parameters, which takes all ranks; without
        it no rank waits for another.
        """

    def free(self) -> None:
        """Free what the module that was applied last has left, once nobody holds it."""

    def computed(self, optimizer: torch.optim.Optimizer) -> dict[str, int]:
        """What this rank should hold, by `parameters`, `gradients`, `optimizer`, `unsharded`: from the mesh alone.

        `optimizer`: over the whole workload's parameters, after a step of its own; else its states are left out.
        """
