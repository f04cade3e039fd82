"""One rank's trace as columns: what the analysis needs of its events, in ns since the file's first event."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.trace.events import Meta
from scaling.trace.spans import Ints

Columns = dict[str, NDArray[Any]]
"""Arrays of one length by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Events of the device, in order of their begin."""

    name: Ints  # index into `names`
    begin: Ints
    end: Ints
    stream: Ints
    correlation: Ints  # -1: none
    kind: Ints  # by name and collective, as signs.COMPUTE ...
    shape: Ints  # equal for equal names and launch grids
    sent: Ints  # index into `sent`, -1: it says nothing of a collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Operators and annotations of the host."""

    role: Ints
    thread: Ints  # small integers
    begin: Ints
    end: Ints
    plain: NDArray[np.bool_]  # an operator, no annotation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one collective says of itself; None where the trace does not tell."""

    collective: str
    bytes: int | None = None
    group: str = ""
    group_size: int | None = None
    seq: int | None = None
    inputs_only: bool = False
    """`bytes` is what goes in; of what comes out nothing is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective as the host announced it (`nccl:all_reduce`, `gloo:all_reduce`)."""

    thread: int
    begin: int
    end: int
    sent: Sent
    on_host: bool
    """It lasts as long as the collective (gloo); that of a device's backend until it is enqueued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One file."""

    path: Path
    meta: Meta
    names: tuple[str, ...]
    gpu: Gpu
    host: Host
    launches: dict[str, Ints]
    """`correlation` in order, and of each the `begin` and `thread` of its first call."""
    sent: tuple[Sent, ...]
    calls: tuple[Call, ...]
    steps: tuple[tuple[str, int, int], ...]
    """(name, begin, end) of each ProfilerStep, in order."""
    events: int
    absurd: int
    """Events with a negative or impossible time; left out."""
    odd: int
    base_us: float
    """What was subtracted from every time of the file."""
