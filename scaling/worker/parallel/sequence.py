"""Divide what lies between a model's divided layers by tokens: sequence parallel, beside tensor parallel.

With tensor parallel alone every rank computes the norms, dropouts and additions between divided layers for all tokens
and keeps their activations. Here each has a part of the tokens there, as in Korthikanti et al. 2022 (section 4.2.2).
Ranks gather the tokens before each pair of divided layers and reduce-scatter what each has behind it, where they would
add up. Backward does the reverse. A last part that is shorter than the others is filled up with zeros, which are cut
off again.

Tensors are (samples, tokens, width).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn.utils import parametrize

from scaling.errors import InputError
from scaling.worker.parallel.collectives import all_gather, reduce_scatter
from scaling.worker.parallel.tap import HOST_BACKENDS, backend_of

_OPS = torch.ops._c10d_functional  # noqa: SLF001
_Way: TypeAlias = Callable[[Any], Any]


class Parts:
    """The parts of a sequence that the ranks of one group have."""

    def __init__(self, mesh: DeviceMesh, tokens: int = 0) -> None:
        """`mesh`: of one axis. `tokens`: of the whole sequence; 0: as `enter` finds it."""
        self.mesh, self._group = mesh, mesh.get_group()
        self._ranks, self._rank = mesh.size(), mesh.get_local_rank()
        self._host = backend_of(self._group, mesh.device_type) in HOST_BACKENDS
        self._tokens = tokens

    def enter(self, whole: torch.Tensor) -> torch.Tensor:
        """Take this rank's part of what every rank has; its gradient is gathered."""
        self._tokens = whole.shape[1]
        return _passed(whole, self.split, self.join)  # type: ignore[no-any-return]

    def leave(self, part: torch.Tensor) -> torch.Tensor:
        """Gather all tokens, for layers that every rank computes alike; of the gradient a rank takes its part."""
        return _passed(part, self.join, self.split)  # type: ignore[no-any-return]

    def gathered(self, part: torch.Tensor) -> DTensor:
        """Gather all tokens, for divided layers; what each rank adds to the gradient is reduce-scattered."""
        return _passed(part, self._on_all, self._reduced_of)  # type: ignore[no-any-return]

    def scattered(self, output: DTensor | torch.Tensor) -> torch.Tensor:
        """Take this rank's part of the sum of what each has; its gradient is gathered. A DTensor has to be Partial."""
        if isinstance(output, DTensor):
            output = output.to_local(grad_placements=[Replicate()])
        return _passed(output, self.reduced, self.join)  # type: ignore[no-any-return]

    def of_all_tokens(self, parameter: torch.Tensor) -> torch.Tensor:
        """A parameter that every rank uses for its part of the tokens; its gradient is added up over ranks."""
        return _passed(parameter, lambda tensor: tensor.view_as(tensor), self.summed)  # type: ignore[no-any-return]

    def split(self, whole: torch.Tensor) -> torch.Tensor:
        """(n, tokens, ...) to (n, ceil(tokens / ranks), ...)."""
        chunk = -(-whole.shape[1] // self._ranks)
        part = whole[:, self._rank * chunk : (self._rank + 1) * chunk]
        missing = chunk - part.shape[1]
        return _filled(part, missing) if missing else part.contiguous()

    def join(self, part: torch.Tensor) -> torch.Tensor:
        """The reverse of `split`: an all-gather."""
        part = part.contiguous()
        if self._host:
            rows: torch.Tensor = part.new_empty(self._ranks * part.shape[0], *part.shape[1:])
            all_gather(rows, part, self._group)
        else:
            rows = _OPS.wait_tensor(_OPS.all_gather_into_tensor(part, self._ranks, self._group.group_name))
        parts = rows.view(self._ranks, *part.shape)
        return parts.transpose(0, 1).flatten(1, 2)[:, : self._tokens].contiguous()

    def reduced(self, whole: torch.Tensor) -> torch.Tensor:
        """Take this rank's part of the sum over ranks: a reduce-scatter."""
        chunk = -(-whole.shape[1] // self._ranks)
        missing = chunk * self._ranks - whole.shape[1]
        whole = _filled(whole, missing) if missing else whole
        rows = whole.reshape(whole.shape[0], self._ranks, chunk, *whole.shape[2:])
        rows = rows.transpose(0, 1).contiguous().flatten(0, 1)
        if not self._host:
            part = _OPS.reduce_scatter_tensor(rows, "sum", self._ranks, self._group.group_name)
            return _OPS.wait_tensor(part)  # type: ignore[no-any-return]
        output: torch.Tensor = rows.new_empty(whole.shape[0], *rows.shape[1:])
        reduce_scatter(output, rows, self._group)
        return output

    def summed(self, gradient: torch.Tensor) -> torch.Tensor:
        """The sum over ranks: an all-reduce."""
        whole = _OPS.all_reduce(gradient.contiguous(), "sum", self._group.group_name)
        return _OPS.wait_tensor(whole)  # type: ignore[no-any-return]

    def _on_all(self, part: torch.Tensor) -> DTensor:
        return DTensor.from_local(self.join(part), self.mesh, (Replicate(),), run_check=False)

    def _reduced_of(self, gradient: DTensor) -> torch.Tensor:
        return self.reduced(gradient.redistribute(placements=[Partial()]).to_local())


def _filled(rows: torch.Tensor, missing: int) -> torch.Tensor:
    return torch.cat([rows, rows.new_zeros(rows.shape[0], missing, *rows.shape[2:])], 1)


class _Passed(torch.autograd.Function):
    """A tensor that goes `forth` by one function, and its gradient `back` by another."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, forth: _Way, back: _Way) -> Any:
        ctx.back = back
        return forth(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(grads[0]), None, None


def _passed(tensor: torch.Tensor, forth: _Way, back: _Way) -> Any:
    return _Passed.apply(tensor, forth, back)  # type: ignore[no-untyped-call]


class _OfAllTokens(nn.Module):
    """`Parts.of_all_tokens`, as a parametrization wants it."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self._parts = parts

    def forward(self, parameter: torch.Tensor) -> torch.Tensor:
        return self._parts.of_all_tokens(parameter)


def with_parts(plan: Mapping[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """The plan with layers divided by rows that leave the sum over ranks to `divide_sequence`."""
    rows = RowwiseParallel(output_layouts=Partial(), use_local_output=False)
    return {name: rows if isinstance(style, RowwiseParallel) else style for name, style in plan.items()}


class Region(NamedTuple):
    """Where tokens are divided."""

    blocks: list[str]
    """Names of blocks that follow one another."""
    gathers: list[str]
    """Modules with divided layers that take all tokens."""
    last: str | None
    """A divided last layer, up to which tokens stay divided; None: they are gathered behind the last block."""


def region_of(module: nn.Module, plan: Mapping[str, ParallelStyle], blocks: Sequence[nn.Module]) -> Region:
    """Where the tokens of a module are divided, whose layers `plan` divides. InputError where that is not known."""
    named = {id(part): name for name, part in module.named_modules()}
    order = {name: place for place, name in enumerate(named.values())}
    within = sorted((named[id(block)] for block in blocks if id(block) in named), key=order.__getitem__)
    if not within:
        raise InputError(
            f"parallel.sequence=true: {type(module).__name__} repeats no block; a language model, a ViT, or a Workload "
            "with a sequence_plan is expected"
        )
    inside = tuple(f"{name}." for name in within)
    outside = [name for name in plan if not name.startswith(inside)]
    vocabulary = [name for name in outside if not getattr(plan[name], "use_local_output", True)]
    if outside != vocabulary or len(vocabulary) > 1:
        raise InputError(
            f"parallel.sequence=true: {outside[0]} is divided and lies outside of the repeated blocks, such as "
            f"{within[0]}; a Workload with a sequence_plan is expected"
        )
    columns = [n for n, style in plan.items() if isinstance(style, ColwiseParallel) and n not in vocabulary]
    gathers = sorted({name.rpartition(".")[0] for name in columns})
    return Region(within, gathers, vocabulary[0] if vocabulary else None)


def divide_sequence(
    module: nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle], region: Region
) -> None:
    """Divide the tokens within a region of a module whose layers are divided by `with_parts(plan)`."""
    parts = Parts(mesh)
    gather = _first(parts.gathered)
    module.get_submodule(region.blocks[0]).register_forward_pre_hook(_first(parts.enter), with_kwargs=True)
    for name in (*region.gathers, *([region.last] if region.last else ())):
        module.get_submodule(name).register_forward_pre_hook(gather, with_kwargs=True, prepend=True)
    for name, style in plan.items():
        if isinstance(style, RowwiseParallel):
            module.get_submodule(name).register_forward_hook(lambda _m, _i, output: parts.scattered(output))
    if region.last is None:
        module.get_submodule(region.blocks[-1]).register_forward_hook(_left(parts))
    for part in _whole_within(module, plan, region):
        for key, parameter in list(part.named_parameters(recurse=False)):
            if parameter.requires_grad:
                parametrize.register_parametrization(part, key, _OfAllTokens(parts), unsafe=True)


def _whole_within(module: nn.Module, plan: Mapping[str, ParallelStyle], region: Region) -> list[nn.Module]:
    """Modules that every rank has whole and calls with its part of the tokens: in blocks, and up to a last layer."""
    inside, behind = tuple(f"{name}." for name in region.blocks), False
    whole = []
    for name, part in module.named_modules():
        behind = region.last is not None and (behind or name.startswith(inside[-1]))
        if name == region.last:
            break
        if (name.startswith(inside) or behind) and name not in plan:
            whole.append(part)
    return whole


def _first(change: Any) -> Any:
    """A hook that changes the first tensor which a module is called with."""

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        name = next(key for key, value in kwargs.items() if isinstance(value, torch.Tensor))
        return args, {**kwargs, name: change(kwargs[name])}

    return hook


def _left(parts: Parts) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (parts.leave(output[0]), *output[1:])
        return parts.leave(output)

    return hook
