"""How a model is spread over ranks: the degrees of the mesh, and the settings of sharded training. Pure.

A mesh has four axes. Ranks of the innermost one are neighbours: rank = ((pipeline x replicate) x shard) x tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from scaling.errors import InputError
from scaling.settings.bounds import AtLeast, Nullable, OneOf, Text

PIPELINED = "pp"
"""The strategy of a loop of one's own whose ranks each have some of the layers; `scaling run` does not offer it."""
OWN = "own"
"""The strategy of a loop of one's own that spreads its model over ranks in a way that is not known."""
STRATEGIES = ("ddp", "fsdp", "hsdp", "tp", "fsdp_tp", "hsdp_tp", "single")
SPREAD = STRATEGIES[:-1]
"""Strategies of several ranks, which can be measured side by side."""
SHARDED = ("fsdp", "hsdp", "tp", "fsdp_tp", "hsdp_tp")
"""Strategies that keep a part of the parameters on each rank (torch's fully_shard and tensor parallel)."""
DIVIDED = ("tp", "fsdp_tp", "hsdp_tp")
"""Those that also divide layers over ranks."""
AXES = ("replicate", "shard", "tensor")
"""Axes of a mesh, outermost first."""
DEGREES = (*AXES, "pipeline")
DIGITS = 7
"""A number of ranks has fewer."""
_KEYS, _TENSOR = 2**18, 2**40
"""Keys of axes lie below those of the pairings of hosts, and differ by world size and degrees."""
_PAIR = 2**52
"""Keys of two ranks that send each other messages lie below all others."""
REST = -1
"""A degree that is whatever the others leave."""


def parse_reshard(text: str, where: str) -> int:
    """`true` as 1, `false` as 0, a number of ranks as that number."""
    word = str(text).strip().lower()
    if word in ("true", "false"):
        return int(word == "true")
    if word.isdigit() and len(word) < DIGITS:
        return int(word)
    raise InputError(f"{where}={text}: true, false, or a number of ranks is expected, such as {where}=2")


def show_reshard(value: float) -> str:
    """The number of `parse_reshard` as it is written."""
    return {0: "false", 1: "true"}.get(int(value), str(int(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp:
    """Settings of fully_shard, as torch names them."""

    reshard: Annotated[int, Text("reshard_after_forward", parse_reshard, show_reshard)] = 1
    """1: free a unit's parameters after its forward; 0: keep them until its backward; k: keep 1/k of them."""
    units: str = "auto"
    """Classes of the modules that are sharded as units, with commas; auto: the model's repeated blocks."""
    prefetch: Annotated[int, AtLeast(0)] = 1
    """Units that are gathered ahead."""
    reduce_dtype: Annotated[str, OneOf(("fp32", "bf16"))] = "fp32"
    separate_reduce_scatter_group: bool = False
    """Give reduce-scatters a communicator of their own, so that they do not wait for all-gathers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How the stages of a pipeline take turns."""

    schedule: str = ""
    """torch's class of the schedule, such as ScheduleGPipe; empty: no pipeline."""
    stages_per_rank: int = 1


def _key(world_size: int, degree: int, axis: str, tensor: int = 1) -> int:
    names = ("shard", "replicate", "part", "reduce")
    if axis == "tensor":
        return -(tensor * _TENSOR + world_size * _KEYS)
    return -((tensor - 1) * _TENSOR + world_size * _KEYS + 4 * degree + names.index(axis))


class MeshError(ValueError):
    """The degrees do not fit a world size; the message names those that would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One dimension of a mesh: `size` ranks, each `stride` ranks from the next."""

    name: str
    size: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The degrees at one world size, all at least 1."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1

    @property
    def size(self) -> int:
        return self.replicate * self.shard * self.tensor * self.pipeline

    @property
    def data_parallel(self) -> int:
        """Ranks, or groups of ranks, that train on samples of their own."""
        return self.replicate * self.shard

    @property
    def dimensions(self) -> tuple[Axis, ...]:
        """The axes with more than one rank, the outermost first."""
        axes, stride = [], self.size
        for name in ("pipeline", *AXES):
            size = getattr(self, name)
            stride //= size
            if size > 1:
                axes.append(Axis(name=name, size=size, stride=stride))
        return tuple(axes)

    def axes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The groups of ranks along each axis that has several, by its name: `shard`, `replicate`, `tensor`."""
        ranks = range(self.size // self.pipeline)
        return {
            axis.name: tuple(
                tuple(range(first, first + axis.size * axis.stride, axis.stride))
                for first in ranks
                if first // axis.stride % axis.size == 0
            )
            for axis in self.dimensions
            if axis.name in AXES
        }

    def axis_of(self, ranks: Sequence[int]) -> str:
        """The axis that ranks of a communicator lie along; a part of the shards counts as them."""
        apart = ranks[1] - ranks[0] if len(ranks) > 1 else 0
        if self.tensor > 1 and apart == 1:
            return "tensor"
        return "replicate" if apart > self.tensor or (apart and self.shard == 1) else "shard"

    def keys(self) -> dict[str, int]:
        """The key in the records of each axis's communicator: the world size where it joins all ranks."""
        n = self.size
        return {
            axis: n if len(groups) == 1 else _key(n, self.shard, axis, self.tensor)
            for axis, groups in self.axes().items()
        }

    def made_by_torch(self, rank: int, fsdp: Fsdp) -> dict[int, tuple[int, ...]]:
        """Communicators of a rank beside its axes', by their key: of fewer ranks, or of reduce-scatters alone."""
        groups: dict[int, tuple[int, ...]] = {}
        if self.shard == 1:
            return groups
        (shards,) = (group for group in self.axes()["shard"] if rank in group)
        if 1 < fsdp.reshard < self.shard:
            place = shards.index(rank) // fsdp.reshard * fsdp.reshard
            part = shards[place : place + fsdp.reshard]
            groups[_key(self.size, fsdp.reshard, "part", self.tensor)] = part
        if fsdp.separate_reduce_scatter_group:
            groups[_key(self.size, self.shard, "reduce", self.tensor)] = shards
        return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """The strategy and its degrees; -1: what is left."""

    name: Annotated[str, OneOf(STRATEGIES)] = "ddp"
    replicate: Annotated[int, AtLeast(REST)] = REST
    """Groups of ranks that hold the same parameters."""
    shard: Annotated[int, AtLeast(REST), Nullable()] = 1
    """Ranks that share one copy of the parameters; null with hsdp: the ranks of a host."""
    tensor: Annotated[int, AtLeast(REST)] = 1
    pipeline: Annotated[int, AtLeast(REST)] = 1
    sequence: bool = False
    """Divide what lies between divided layers by tokens (sequence parallel)."""

    @classmethod
    def preset(cls, name: str, ranks_per_host: int) -> Parallel:
        """A strategy with its usual degrees, as conf/parallel has them."""
        if name == "tp":
            return cls(name=name, replicate=1, tensor=REST)
        tensor = 2 if name in DIVIDED else 1
        if name in ("fsdp", "fsdp_tp"):
            return cls(name=name, replicate=1, shard=REST, tensor=tensor)
        within = max(1, ranks_per_host // tensor) if name in ("hsdp", "hsdp_tp") else 1
        return cls(name=name, replicate=REST, shard=within, tensor=tensor)

    @property
    def sharded(self) -> bool:
        return self.name in SHARDED

    @property
    def divided(self) -> bool:
        """Whether layers are divided over ranks (tensor parallel)."""
        return self.name in DIVIDED

    def mesh(self, world_size: int) -> Mesh:
        """The mesh of `world_size` ranks, from the first ones on. MeshError where the degrees do not fit it.

        A single rank has every degree 1: it is the baseline. HSDP over the ranks of one host or fewer has one group,
        and layers are split over no more ranks than there are. A degree that the strategy does not have is 1: config
        refuses it, and a plan.json that was changed later cannot make a pipeline of data-parallel ranks.
        """
        if world_size == 1:
            return Mesh()
        has = {"shard": self.sharded, "tensor": self.divided, "pipeline": self.name == PIPELINED}
        degrees = {name: getattr(self, name) if has.get(name, True) else 1 for name in DEGREES}
        degrees["tensor"] = min(degrees["tensor"], world_size)
        if self.name in ("hsdp", "hsdp_tp") and degrees["shard"] > 0:
            degrees["shard"] = min(degrees["shard"], max(1, world_size // max(1, degrees["tensor"])))
        left = [name for name, degree in degrees.items() if degree == REST]
        fixed = math.prod(degree for degree in degrees.values() if degree != REST)
        if fixed < 1 or world_size % fixed or (not left and fixed != world_size):
            raise MeshError(self._fitting(world_size, degrees, left))
        degrees |= {name: world_size // fixed if name == left[0] else 1 for name in left}
        return Mesh(**degrees)

    def _fitting(self, world_size: int, degrees: dict[str, int], left: list[str]) -> str:
        given = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree not in (REST, 1))
        fits = divisors(world_size)
        if self.name == "single":
            return f"world size {world_size}: parallel=single trains on one rank; use world_sizes=[1], or parallel=ddp"
        free = "tensor" if self.divided else "shard" if self.sharded else "replicate"
        wanted = f"parallel.{free}={'|'.join(map(str, fits))}"
        other = "shard" if free == "replicate" else "replicate"
        rest = "" if left else f", or parallel.{other}=-1 for what is left"
        return f"{given or 'the mesh'} does not fit world size {world_size}; {wanted} would{rest}"


def divisors(number: int) -> tuple[int, ...]:
    """What divides a number, in order."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)
