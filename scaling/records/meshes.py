"""The degrees of the plan's mesh held against the communicators that the rank files name. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import product

from scaling.records.rank import RankFile
from scaling.spec.parallel import AXES, REST, MeshError, Parallel, divisors, is_axis
from scaling.spec.plan import Plan

Seen = tuple[frozenset[int], frozenset[int]]


def as_communicated(plan: Plan, files: Iterable[RankFile]) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the degrees whose communicators rank 0 had, and a line where those are others than the plan's.

    The key of an axis tells its degrees. An axis that joins all ranks has the world size as its key, so a mesh of one
    axis at every world size is not told from another one. Where no degrees give the communicators, the plan's are kept
    and that is said. Of settings side by side, the files have the communicators of all, and nothing is said.
    """
    parallel = plan.spec.parallel
    if plan.own_loop or not parallel.sharded or plan.spec.vary.parallel or plan.variant is not None:
        return plan, ()
    seen = {_recorded(file) for file in files if file.rank == 0 and file.groups}
    if _fits(parallel, seen):
        return plan, ()
    said = f"plan.json says {_degrees(parallel)}, and the rank files have other communicators"
    most = max((n for sizes, _ in seen for n in sizes), default=1)
    for one in _others(parallel, plan.spec.topology.ranks_per_host, most):
        if _fits(one, seen):
            spec = dataclasses.replace(plan.spec, parallel=one)
            return dataclasses.replace(plan, spec=spec), (f"{said}: those of {_degrees(one)}, which is used",)
    return plan, (f"{said}; samples/s, efficiency and the loss by cause may be wrong",)


def _recorded(file: RankFile) -> Seen:
    """The world sizes of a rank's launch, and the keys of its axes' communicators.

    A world size is believed only with its ranks, so that a number that was changed asks for no mesh of a billion.
    """
    sizes = frozenset(key for key, ranks in file.groups.items() if key == len(ranks) > 1)
    return sizes, frozenset(filter(is_axis, file.groups))


def _fits(parallel: Parallel, seen: Iterable[Seen]) -> bool:
    """Whether the meshes of each launch's world sizes have the communicators that it had."""
    try:
        return all(
            {key for n in sizes for key in parallel.mesh(n).keys().values() if is_axis(key)} == axes
            for sizes, axes in seen
        )
    except MeshError:
        return False


def _others(parallel: Parallel, ranks_per_host: int, most: int) -> Iterator[Parallel]:
    """The strategy with all degrees that it may have on `most` ranks: its usual ones, then with one for the rest."""
    yield dataclasses.replace(Parallel.preset(parallel.name, ranks_per_host), sequence=parallel.sequence)
    for rest in (True, False):
        for degrees in product((REST, *divisors(most)), repeat=3):
            if degrees.count(REST) == rest:
                replicate, shard, tensor = degrees
                yield dataclasses.replace(parallel, replicate=replicate, shard=shard, tensor=tensor)


def _degrees(parallel: Parallel) -> str:
    degrees = (f"{name} {getattr(parallel, name)}" for name in AXES)
    return f"parallel={parallel.name} with {', '.join(degrees)}"
