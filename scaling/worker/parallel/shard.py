"""torch's fully_shard with the harness's settings: a module's units, what is gathered ahead, the host's back end.

Which modules of a model are sharded together: its units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from scaling.errors import InputError
from scaling.settings.parallel import Fsdp
from scaling.worker.models.options import repeated
from scaling.worker.parallel.collectives import all_gather, reduce_scatter
from scaling.worker.parallel.torch_private import param_groups, reduces_alone

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HALF = ("bf16", "fp16")
"""Precisions in which parameters are gathered and computed with."""


class _Allocates:
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer, as torch asks for it."""
        return torch.empty(*size, dtype=dtype, device=device)


class HostAllGather(_Allocates):
    """torch's AllGather for the host's back end: both directions of every link carry at once."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather every rank's part."""
        return all_gather(output_tensor, input_tensor, group, async_op=async_op)


class HostReduceScatter(_Allocates):
    """torch's ReduceScatter for the host's back end: it moves what NCCL's does, and blocks the host meanwhile."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: ARG002  # torch waits for it at once
    ) -> None:
        """Reduce into this rank's part."""
        reduce_scatter(output_tensor, input_tensor, group, mean=op == dist.ReduceOp.AVG)


def shard(
    module: nn.Module,
    settings: Fsdp,
    mesh: DeviceMesh,
    *,
    names: Sequence[str],
    precision: str,
    host: bool,
    reduces: Any = None,
) -> tuple[list[Any], list[str]]:
    """Shard a module in place over a mesh. Returns its units with parameters, in their order, and their names.

    `names`: modules that are units; what is in none of them is the root's, which comes first. `host`: the back end is
    the host's. There all-gathers are made asynchronous, or nothing would overlap. `reduces`: the communicator that an
    earlier module over the same ranks had for reduce-scatters alone (`reduces_of`). Without it torch makes another one
    for each module, and keeps all of them to the end.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=TYPES[precision] if precision in HALF else None, reduce_dtype=TYPES[settings.reduce_dtype]
    )
    # A part of the ranks, true or false; over one rank nothing is left to reshard to.
    part = settings.reshard > 1 and mesh.size() > 1
    reshard: bool | int = settings.reshard if part else bool(settings.reshard)
    inner = [module.get_submodule(name) for name in names]
    for unit in inner:
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    # By default torch keeps what the root has gathered until backward, where it is needed first.
    kept: dict[str, Any] = {} if reshard is True else {"reshard_after_forward": reshard}
    fully_shard(module, mesh=mesh, mp_policy=policy, **kept)
    units: list[Any] = [u for u in (module, *inner) if param_groups(u)]
    labels = [
        name for u, name in zip((module, *inner), ("root", *names), strict=True) if any(u is v for v in units)
    ]
    _prefetch(module, inner, settings.prefetch)
    if host:
        for unit in (module, *inner):
            assert isinstance(unit, FSDPModule)
            unit._set_unshard_async_op(True)  # noqa: SLF001
            unit.set_custom_reduce_scatter(HostReduceScatter())  # type: ignore[arg-type]
            unit.set_custom_all_gather(HostAllGather())  # type: ignore[arg-type]
    if settings.separate_reduce_scatter_group and mesh.size() > 1:
        _separate_reduce_scatters(module, reduces)
    return units, labels


def require_own_reduces() -> None:
    """InputError where torch cannot give reduce-scatters a communicator of their own: 2.11 cannot, 2.13 can."""
    if not hasattr(FSDPModule, "set_separate_reduce_scatter_group"):
        raise InputError(
            f"fsdp.separate_reduce_scatter_group=true: torch {torch.__version__} cannot; try false, or a newer torch"
        )


def _separate_reduce_scatters(module: nn.Module, kept: Any) -> None:
    """Give a sharded module's reduce-scatters a communicator of their own: `kept`, or a new one where that is None."""
    require_own_reduces()
    assert isinstance(module, FSDPModule)
    groups = [g for m in module.modules() if isinstance(m, FSDPModule) for g in param_groups(m)]
    for group in groups if kept is not None else ():
        group.mesh_info.reduce_scatter_process_group = kept
    module.set_separate_reduce_scatter_group(True)


def reduces_of(units: Sequence[Any]) -> Any:
    """The communicator that units have for reduce-scatters alone; None where they share that of their all-gathers."""
    groups = [group for unit in units for group in param_groups(unit)]
    return reduces_alone(groups[0].mesh_info) if groups else None


def _prefetch(root: nn.Module, units: Sequence[nn.Module], count: int) -> None:
    """Gather so many units ahead, in the order of the model and back; 0: what torch does by itself."""
    if not count:
        return
    order: list[Any] = [u for u in (root, *units) if isinstance(u, FSDPModule)]
    for index, unit in enumerate(order):
        ahead = order[index + 1 : index + 1 + count]
        behind = order[max(1, index - count) : index][::-1]  # the root keeps its parameters until backward
        if ahead:
            unit.set_modules_to_forward_prefetch(ahead)
        if behind:
            unit.set_modules_to_backward_prefetch(behind)


AUTO = "auto"


def unit_names(module: nn.Module, asked: str, blocks: Sequence[nn.Module] = ()) -> list[str]:
    """Names of the modules that are units, in the order of the model; what is in none of them belongs to the root.

    `asked`: class names with commas, or `auto`: the blocks that the workload names, those that the model repeats, or
    the children of a Sequential. InputError where a class is not in the model.
    """
    names = {id(inner): name for name, inner in module.named_modules()}
    if asked != AUTO:
        return _of_classes(module, [word.strip() for word in asked.split(",") if word.strip()])
    chosen = list(blocks) or repeated(module)
    if not chosen and isinstance(module, nn.Sequential):
        chosen = list(module)
    order = list(names)
    kept = [m for m in chosen if any(p.requires_grad for p in m.parameters())]
    return [names[id(m)] for m in sorted(kept, key=lambda m: order.index(id(m)))]


def _of_classes(module: nn.Module, wanted: Sequence[str]) -> list[str]:
    kinds = {type(inner).__name__ for inner in module.modules()}
    for word in wanted:
        if word not in kinds:
            raise InputError(
                f"fsdp.units={','.join(wanted)}: the model has no {word}; it has {', '.join(sorted(kinds))}"
            )
    return [
        name
        for name, inner in module.named_modules()
        if name and type(inner).__name__ in wanted and any(True for _ in inner.parameters())
    ]
