"""The strategy and its mesh as they were asked for, checked and frozen. InputError says what would be accepted."""

from __future__ import annotations

from scaling.config.schema import Composed, freeze
from scaling.errors import InputError
from scaling.settings.parallel import DEGREES, REST, Fsdp, MeshError, Parallel
from scaling.settings.run import Ddp, Spec
from scaling.settings.topology import Topology


def to_parallel(config: Composed, topology: Topology) -> Parallel:
    """The strategy; where HSDP is not told its shard degree, a copy fills a host."""
    within = topology.ranks_per_host // max(1, int(config.tensor))
    shard = max(1, within) if config.shard is None else config.shard
    return freeze(Parallel, config, "parallel", shard=shard)


def check_parallel(spec: Spec) -> None:
    """InputError for a mesh that does not fit, or settings that no strategy of the run has."""
    _check_side_by_side(spec)
    for strategy in spec.strategies:
        _check_mesh(strategy)
        _check_settings(strategy)
    strategies = [strategy.parallel for strategy in spec.strategies]
    if all(parallel.sharded for parallel in strategies):
        _check_unused(
            spec, "ddp", Ddp(), "has fsdp.units, fsdp.prefetch, fsdp.reshard_after_forward, fsdp.reduce_dtype"
        )
    if not any(parallel.sharded for parallel in strategies):
        _check_unused(spec, "fsdp", Fsdp(), "has none")


def _check_side_by_side(spec: Spec) -> None:
    """InputError for strategies that cannot be measured side by side, or are the same."""
    names, listed = spec.vary.parallel, f"vary.parallel=[{','.join(spec.vary.parallel)}]"
    if not names:
        return
    if spec.kind.by_cases:
        raise InputError(
            f"{listed}: takes the steps of each strategy apart, which batch, the other lists of vary and "
            "task=inference do not; leave those out"
        )
    for index, strategy in enumerate(spec.strategies):
        for other in spec.strategies[:index]:
            if strategy.parallel.sharded and other.parallel.sharded and _alike(strategy, other):
                raise InputError(
                    f"{listed}: {strategy.parallel.name} has the same mesh as {other.parallel.name} at every world "
                    f"size here; give its degree, such as parallel=hsdp parallel.shard=2 {listed}, or leave one out"
                )


def _alike(strategy: Spec, other: Spec) -> bool:
    """Whether two strategies have the same mesh at every world size; one that does not fit is said elsewhere."""
    try:
        return all(strategy.parallel.mesh(n) == other.parallel.mesh(n) for n in strategy.world_sizes)
    except MeshError:
        return False


def _check_mesh(spec: Spec) -> None:
    parallel = spec.parallel
    for name in DEGREES:
        if getattr(parallel, name) == 0:
            raise InputError(
                f"parallel.{name}=0: a degree of at least 1, or -1 for what is left, is expected"
            )
    rest = [name for name in DEGREES if getattr(parallel, name) == REST]
    if len(rest) > 1:
        raise InputError(
            f"parallel.{rest[1]}=-1: parallel.{rest[0]}=-1 takes what the others leave, and only one degree can; a "
            "number for one of them is expected"
        )
    if parallel.pipeline != 1:
        raise InputError(
            f"parallel.pipeline={parallel.pipeline}: 1 is expected; a Probe in your own script follows a pipeline"
        )
    if not parallel.divided and parallel.tensor != 1:
        raise InputError(
            f"parallel.tensor={parallel.tensor}: parallel={parallel.name} divides no layers; use parallel=tp, fsdp_tp "
            "or hsdp_tp"
        )
    if parallel.sequence and not parallel.divided:
        raise InputError(
            f"parallel.sequence=true: parallel={parallel.name} divides no layers; use parallel=tp, fsdp_tp or hsdp_tp"
        )
    if not parallel.sharded and parallel.shard != 1:
        raise InputError(
            f"parallel.shard={parallel.shard}: parallel={parallel.name} keeps the whole model on every rank; "
            "use parallel=fsdp or parallel=hsdp"
        )
    if parallel.divided and spec.mode == "strong":
        raise InputError(
            f"global_batch={spec.global_batch}: parallel={parallel.name} is measured with one batch for each group of "
            "ranks that divides the layers; use batch_per_rank"
        )
    if parallel.name in ("fsdp", "fsdp_tp") and parallel.replicate != 1:
        several = parallel.name.replace("fsdp", "hsdp")
        raise InputError(
            f"parallel.replicate={parallel.replicate}: parallel={parallel.name} has one copy; use parallel={several} "
            "for several"
        )
    for size in spec.world_sizes:
        try:
            mesh = parallel.mesh(size)
        except MeshError as error:
            raise InputError(f"parallel={parallel.name}: {error}") from error
        if spec.fsdp.reshard > 1 and size > 1 and parallel.sharded and mesh.shard % spec.fsdp.reshard:
            raise InputError(
                f"fsdp.reshard_after_forward={spec.fsdp.reshard}: does not divide the {mesh.shard} ranks that share "
                f"the parameters at world size {size}; true, false or a divisor is expected"
            )


def _check_unused(spec: Spec, group: str, usual: Ddp | Fsdp, instead: str) -> None:
    """InputError for settings of a strategy that the run does not use."""
    given = getattr(spec, group)
    changed = [n for n in type(usual).__dataclass_fields__ if getattr(given, n) != getattr(usual, n)]
    if changed:
        key = "reshard_after_forward" if changed[0] == "reshard" else changed[0]
        where = "parallel=ddp" if group == "ddp" else "parallel=fsdp and hsdp"
        raise InputError(f"{group}.{key}: belongs to {where}; parallel={spec.parallel.name} {instead}")


def _check_settings(spec: Spec) -> None:
    """InputError for settings that sharded training does not have."""
    if spec.parallel.sharded:
        if spec.kind.by_cases:
            raise InputError(
                f"parallel={spec.parallel.name}: batch, vary and task=inference are measured with parallel=ddp; leave "
                "them out"
            )
        if spec.compile and spec.parallel.divided:
            raise InputError(
                f"compile=true: parallel={spec.parallel.name} runs eager, since the waits of divided layers lie within "
                "their graphs and would not be seen; leave one of them out, or use parallel=ddp, fsdp or hsdp"
            )
        if spec.precision == "fp16" and spec.parallel.divided:
            raise InputError(
                f"precision=fp16: parallel={spec.parallel.name} has gradients over several meshes, which torch's loss "
                "scaler does not take together; use fp32, tf32 or bf16"
            )
        part, largest = spec.fsdp.reshard > 1, max(spec.world_sizes)
        if part and any(1 < n < largest for n in spec.world_sizes):
            raise InputError(
                f"fsdp.reshard_after_forward={spec.fsdp.reshard}: all ranks of a launch take part when torch makes its "
                f"communicators; use world_sizes=[1,{largest}], or true or false"
            )
        if spec.topology.spread:
            raise InputError(
                f"topology.placement=spread: parallel={spec.parallel.name} is measured with packed ranks; use "
                "topology.placement=packed"
            )
