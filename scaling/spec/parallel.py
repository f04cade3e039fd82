"""How a model is spread over ranks: the degrees of the mesh, and the settings of sharded training. Pure.

A mesh has four axes. Ranks of the innermost one are neighbours: rank = ((pipeline x replicate) x shard) x tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaling.errors import InputError
from scaling.spec.settings import AtLeast, Nullable, OneOf, Text

STRATEGIES = ("ddp", "fsdp", "hsdp", "single")
SHARDED = ("fsdp", "hsdp")
"""Strategies that keep a part of the parameters on each rank (torch's fully_shard)."""
REDUCE_TYPES = ("fp32", "bf16")
DIGITS = 7
"""A number of ranks has fewer."""
_KEYS = 2**18
"""Keys of axes lie below those of the pairings of hosts, and differ by world size and degree."""
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
    reduce_dtype: Annotated[str, OneOf(REDUCE_TYPES)] = "fp32"
    separate_reduce_scatter_group: bool = False
    """Give reduce-scatters a communicator of their own, so that they do not wait for all-gathers."""


def _key(world_size: int, degree: int, axis: str) -> int:
    return -(world_size * _KEYS + 4 * degree + ("shard", "replicate", "part", "reduce").index(axis))


class MeshError(ValueError):
    """The degrees do not fit a world size; the message names those that would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The degrees at one world size, all at least 1."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1

    @property
    def size(self) -> int:
        """Ranks of the mesh."""
        return self.replicate * self.shard * self.tensor * self.pipeline

    def axes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The groups of ranks along each axis that has several, by its name: `shard`, `replicate`."""
        found = {}
        if self.shard > 1:
            found["shard"] = tuple(
                tuple(range(r * self.shard, (r + 1) * self.shard)) for r in range(self.replicate)
            )
        if self.replicate > 1:
            found["replicate"] = tuple(
                tuple(range(s, self.replicate * self.shard, self.shard)) for s in range(self.shard)
            )
        return found

    def keys(self) -> dict[str, int]:
        """The key in the records of each axis's communicator: the world size where it joins all ranks."""
        n = self.size
        return {
            axis: n if len(groups) == 1 else _key(n, self.shard, axis) for axis, groups in self.axes().items()
        }

    def made_by_torch(self, rank: int, fsdp: Fsdp) -> dict[int, tuple[int, ...]]:
        """Communicators of a rank beside its axes', by their key: of fewer ranks, or of reduce-scatters alone."""
        found = {}
        if self.shard > 1 and 1 < fsdp.reshard < self.shard:
            first = rank - rank % fsdp.reshard
            found[_key(self.size, fsdp.reshard, "part")] = tuple(range(first, first + fsdp.reshard))
        if self.shard > 1 and fsdp.separate_reduce_scatter_group:
            first = rank - rank % self.shard
            found[_key(self.size, self.shard, "reduce")] = tuple(range(first, first + self.shard))
        return found


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

    @property
    def sharded(self) -> bool:
        """Whether parameters are sharded."""
        return self.name in SHARDED

    def mesh(self, world_size: int) -> Mesh:
        """The mesh of `world_size` ranks, from the first ones on. MeshError where the degrees do not fit it.

        A single rank has every degree 1: it is the baseline. HSDP over the ranks of one host or fewer has one group.
        """
        if world_size == 1:
            return Mesh()
        degrees = {name: getattr(self, name) for name in ("replicate", "shard", "tensor", "pipeline")}
        if self.name == "hsdp":
            degrees["shard"] = min(degrees["shard"], world_size) if degrees["shard"] > 0 else degrees["shard"]
        fixed, left = 1, [name for name, degree in degrees.items() if degree == REST]
        for name, degree in degrees.items():
            fixed *= 1 if name in left else degree
        if fixed < 1 or world_size % fixed or (not left and fixed != world_size):
            raise MeshError(self._fitting(world_size, degrees, left))
        for index, name in enumerate(left):
            degrees[name] = world_size // fixed if index == 0 else 1
        return Mesh(**degrees)

    def _fitting(self, world_size: int, degrees: dict[str, int], left: list[str]) -> str:
        given = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree not in (REST, 1))
        fits = [d for d in range(1, world_size + 1) if world_size % d == 0]
        if self.name == "single":
            return f"world size {world_size}: parallel=single trains on one rank; use world_sizes=[1], or parallel=ddp"
        free = "shard" if self.name in SHARDED else "replicate"
        wanted = f"parallel.{free}={'|'.join(map(str, fits))}"
        other = "replicate" if free == "shard" else "shard"
        rest = "" if left else f", or parallel.{other}=-1 for what is left"
        return f"{given or 'the mesh'} does not fit world size {world_size}; {wanted} would{rest}"
