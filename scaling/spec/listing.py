"""What a step of a program over ranks sends at a mesh that need not be there: the question, and torch's own answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.spec.parallel import Mesh
from scaling.spec.run import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A spec's program, as rank 0 of a mesh."""

    spec: Spec
    mesh: Mesh
    host: bool
    """Whether the back end is the host's (Gloo): there the host itself waits."""
    samples: int = 1
    """Of a micro-step. What divided layers send goes by them: it is scaled from the few that the program runs with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCollective:
    """One collective of a step, in the order of launch."""

    kind: str
    phase: str
    unit: int
    """A sharded unit; of DDP's buckets the one whose gradients complete it."""
    axis: str
    """`shard`, `replicate` or `tensor`."""
    ranks: int
    bytes: int
    """As nccl-tests counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMark:
    """The rank launches a collective, or waits for it."""

    waits: bool
    collective: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A step of rank 0. `failed`: why there is none."""

    collectives: tuple[ListedCollective, ...] = ()
    marks: tuple[ListedMark, ...] = ()
    """In the order in which the rank comes to them."""
    memory: dict[str, int] = field(default_factory=dict)
    """What the rank should hold by arithmetic, bytes: `parameters`, `gradients`, `optimizer`, `unsharded`."""
    failed: str | None = None
