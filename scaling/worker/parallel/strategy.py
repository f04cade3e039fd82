"""The seam between how a model is spread over ranks and all that measures it.

A strategy makes the module that is trained over ranks, for one use and for as long as its blocks need it. It says how
gradients are accumulated, what a detailed block records, and where the rank waits for communication. Nothing outside
this folder asks which strategy it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from scaling.records.format import CollectiveRow
from scaling.settings.schedule import PHASES, Message
from scaling.worker.parallel.torch_private import in_backward

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
    waits: list[Wait] | None
    """None where the strategy waits only behind backward's compute."""
    waits_behind: bool = False
    """Whether it waits there too, beside `waits`."""


class Edges(NamedTuple):
    """What a step's own stamps show of its waits; tokens, or ns once they are resolved."""

    broadcasts: Sequence[tuple[int, int]]
    """Begin and end of each broadcast of buffers."""
    behind: Sequence[tuple[int, int]]
    """End of backward's compute and of backward, of each micro-step whose gradients are reduced behind it."""


Take = Callable[[int], Taken]
"""Given the host time at which the step's last forward ended, returns what the step left."""


class Detail:
    """What the stamped blocks of an arm record of communication."""

    stamps = 0
    """Largest number of stamps that it takes in a step."""
    unsharded_bytes = 0
    """Most bytes of gathered parameters that the rank held at once; 0 where nothing is gathered."""

    def __init__(self) -> None:
        self.wire: list[Message] = []
        """The collectives of the step taken last, in the order of launch."""

    def taking(self) -> contextlib.AbstractContextManager[Take]:
        """Inside, `take` can be called after each step."""
        raise NotImplementedError

    def all_of(self, rows: Sequence[CollectiveRow], edges: Edges) -> list[CollectiveRow]:  # noqa: ARG002
        """A step's rows, as taken, with what its own stamps show."""
        return list(rows)

    def discard(self) -> None:
        """Forget what was seen so far."""

    def parameters(self, begin_ns: Sequence[int]) -> list[tuple[int, int]]:  # noqa: ARG002
        """BlockRecord.parameters, given when the steps taken last began; empty where ready times are not known."""
        return []


class Parallelized(Protocol):
    """A module that is trained over ranks."""

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer

    @property
    def units(self) -> list[str]:
        """Names of what is sent together: buckets or sharded units."""

    @property
    def buckets(self) -> list[int]:
        """Bytes of these, in the order of reduction, once the first steps have settled them."""

    @property
    def accumulate(self) -> Callable[[bool], contextlib.AbstractContextManager[Any]]:
        """Around a micro-step, given whether it is the last."""

    def settle(self) -> None:
        """After the first steps: make it like one that has trained for long."""

    def withheld(self) -> str:
        """Why its collectives are not to be stamped (BlockRecord.withheld); all of its ranks ask at once."""

    def detail(self, *, detailed: bool) -> Detail | None:
        """What a stamped block records; None: nothing beside the step's own stamps."""

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
