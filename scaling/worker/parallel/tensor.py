"""Divide the layers of a model over the ranks of an axis, with torch's styles of tensor parallel.

Of two matrices that follow one another the first is divided by its outputs (columns) and the second by its inputs
(rows), as Megatron-LM does (Shoeybi et al. 2019, section 3). A rank then has whole heads of attention and a part of the
hidden layer, and the ranks add up what each has only behind the second matrix. The last layer of a language model is
divided by the vocabulary, and the loss is taken from the parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from scaling.errors import InputError
from scaling.worker.data.workload import Workload
from scaling.worker.models.options import repeated
from scaling.worker.parallel.sequence import divide_sequence, region_of, with_parts

COLUMNS = re.compile(
    r"(.*\.)?(q_proj|k_proj|v_proj|query|key|value|gate_proj|up_proj|fc1|intermediate\.dense|c_fc)"
)
ROWS = re.compile(r"(.*\.)?(o_proj|down_proj|fc2|attention\.output\.dense|output\.dense|c_proj)")
VOCABULARY = re.compile(r"(.*\.)?lm_head")
KNOWN = "the attention and MLP layers of Llama, GPT-2, BERT and ViT in transformers, and Linear layers in a Sequential"


class FusedAttention(nn.Module):
    """GPT-2's one matrix for queries, keys and values as three, so that each is divided by heads."""

    def __init__(self, fused: Any) -> None:
        super().__init__()
        weights, biases = fused.weight.chunk(3, dim=1), fused.bias.chunk(3)
        self.query, self.key, self.value = map(_linear, weights, biases)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, sequence, width) to (n, sequence, 3 x this rank's part of it)."""
        return torch.cat([self.query(rows), self.key(rows), self.value(rows)], dim=-1)


class Divided(NamedTuple):
    """What was divided."""

    layers: int = 0
    loss: bool = False
    """Whether the loss is taken from parts of the model's outputs."""


def divide(workload: Workload, module: nn.Module, mesh: DeviceMesh, *, sequence: bool = False) -> Divided:
    """Divide the module, a copy of the workload's, in place over a mesh of one axis.

    `sequence`: what lies between divided layers is divided by tokens. InputError names what cannot be divided.
    """
    _unfuse(module, mesh.size())
    workload_plan = workload.sequence_plan if sequence else workload.tensor_plan
    if sequence and workload.tensor_plan and not workload_plan:
        raise InputError(
            "parallel.sequence=true: the Workload has a tensor_plan and no sequence_plan, which is expected"
        )
    plan = dict(workload_plan or auto_plan(module))
    _check_heads(module, mesh.size())
    for name, style in plan.items():
        _check(name, module.get_submodule(name), style, mesh.size())
    loss = any(not getattr(style, "use_local_output", True) for style in plan.values())
    region = None
    if sequence and not workload_plan:
        region = region_of(module, plan, _same_blocks(workload, module) or repeated(module))
    parallelize_module(module, mesh, with_parts(plan) if region else plan, src_data_rank=None)
    if region:
        divide_sequence(module, mesh, plan, region)
    else:
        _share_inputs(module, mesh, plan)
    return Divided(layers=len(plan), loss=loss)


def _same_blocks(workload: Workload, module: nn.Module) -> list[nn.Module]:
    """The blocks that a workload names, in a copy of its module."""
    named = {id(block) for block in workload.blocks}
    return [module.get_submodule(name) for name, part in workload.module.named_modules() if id(part) in named]


class _SharedInput:
    """Before layers of one parent that take the same tensor: they take one DTensor of it.

    Its gradient is then added up over ranks once, and not once for each layer.
    """

    def __init__(self, mesh: DeviceMesh, layers: int) -> None:
        self._mesh, self._layers = mesh, layers
        self._shared: DTensor | None = None
        self._rows: torch.Tensor | None = None
        self._left = 0
        """Layers that have yet to take it; then nothing is kept."""

    def __call__(self, _layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        rows = inputs[0]
        if isinstance(rows, DTensor):
            return inputs
        if self._rows is not rows or self._shared is None:
            shared = DTensor.from_local(rows, self._mesh, (Replicate(),), run_check=False)
            self._rows, self._shared, self._left = rows, shared, self._layers
        shared, self._left = self._shared, self._left - 1
        if not self._left:
            self._rows = self._shared = None
        return (shared, *inputs[1:])


def _share_inputs(module: nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]) -> None:
    parents: dict[str, list[str]] = {}
    for name, style in plan.items():
        if isinstance(style, ColwiseParallel):
            parents.setdefault(name.rpartition(".")[0], []).append(name)
    for names in parents.values():
        shared = _SharedInput(mesh, len(names))
        for name in names if len(names) > 1 else ():
            module.get_submodule(name).register_forward_pre_hook(shared, prepend=True)


def auto_plan(module: nn.Module) -> dict[str, ParallelStyle]:
    """A style for each layer that is known. InputError where none is."""
    plan: dict[str, ParallelStyle] = {}
    tied = _tied(module)
    for name, part in module.named_modules():
        if isinstance(part, nn.Sequential):
            plan |= _in_turns(name, part)
        if not isinstance(part, nn.Linear):
            continue
        if VOCABULARY.fullmatch(name) and not tied:
            plan[name] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        elif ROWS.fullmatch(name):
            plan[name] = RowwiseParallel()
        elif COLUMNS.fullmatch(name):
            plan[name] = ColwiseParallel()
    if not plan:
        raise InputError(
            f"parallel.tensor: {type(module).__name__} has no layer that is known to be divided; known are {KNOWN}; a "
            "Workload may bring a tensor_plan"
        )
    _check_rest(module, plan)
    _check_among(module, plan)
    return plan


def _check_among(module: nn.Module, plan: Mapping[str, ParallelStyle]) -> None:
    """InputError for an undivided layer beside divided ones, such as a norm of queries.

    It sees a rank's own heads alone, so its gradient would be a part of the whole one.
    """
    columns = {name for name in plan if COLUMNS.fullmatch(name)}
    for parent in {name.rpartition(".")[0] for name in columns}:
        for child, part in module.get_submodule(parent).named_children():
            name = f"{parent}.{child}" if parent else child
            if name not in plan and any(True for _ in part.parameters()):
                raise InputError(
                    f"parallel.tensor: {name} ({type(part).__name__}) lies among divided layers and is not known to be "
                    "divided; a Workload may bring a tensor_plan"
                )


def _check_rest(module: nn.Module, plan: Mapping[str, ParallelStyle]) -> None:
    """InputError where most of a model, but for its embeddings, would be computed by every rank."""
    sizes = {
        name: sum(p.numel() for p in part.parameters(recurse=False))
        for name, part in module.named_modules()
        if not isinstance(part, nn.Embedding) and not VOCABULARY.fullmatch(name)
    }
    divided = sum(size for name, size in sizes.items() if name in plan)
    rest = {name: size for name, size in sizes.items() if name not in plan}
    if sum(rest.values()) > divided:
        largest = max(rest, key=lambda name: rest[name])
        raise InputError(
            f"parallel.tensor: {largest} ({type(module.get_submodule(largest)).__name__}) is not known to be divided, "
            f"and most of the model is not; known are {KNOWN}"
        )


def _in_turns(name: str, layers: nn.Sequential) -> Mapping[str, ParallelStyle]:
    """Pairs of Linear layers with nothing but activations between them; one that is left over stays whole."""
    plan: dict[str, ParallelStyle] = {}
    first: str | None = None
    for child, part in layers.named_children():
        path = f"{name}.{child}" if name else child
        if isinstance(part, nn.Linear):
            if first is None:
                first = path
            else:
                plan |= {first: ColwiseParallel(), path: RowwiseParallel()}
                first = None
        elif any(True for _ in part.parameters()):
            first = None
    return plan


def _tied(module: nn.Module) -> bool:
    """Whether the last layer shares its weights with the embedding, which is not divided."""
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    return any(
        VOCABULARY.fullmatch(name) and id(part.weight) in embeddings
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
    )


def _unfuse(module: nn.Module, degree: int) -> None:
    """Make GPT-2's layers ones that torch can divide."""
    part: Any
    for part in list(module.modules()):
        child: Any
        for name, child in list(part.named_children()):
            if type(child).__name__ != "Conv1D":
                continue
            if name == "c_attn":
                part.c_attn = FusedAttention(child)
                part.split_size //= degree  # of the parts that forward takes apart
            else:
                setattr(part, name, _linear(child.weight, child.bias))


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    """A Linear layer of a weight (inputs, outputs) as Conv1D has it."""
    inputs, outputs = weight.shape
    layer = nn.Linear(inputs, outputs, device="meta")
    layer.weight = nn.Parameter(weight.detach().t().contiguous(), requires_grad=weight.requires_grad)
    layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    return layer


def _check_heads(module: nn.Module, degree: int) -> None:
    """InputError where heads would be cut."""
    for part in module.modules():
        config = getattr(part, "config", None)
        for name in ("num_attention_heads", "num_key_value_heads"):
            heads = getattr(config, name, None)
            if heads and heads % degree:
                raise InputError(f"parallel.tensor={degree}: does not divide the model's {heads} ({name})")


def _check(name: str, part: nn.Module, style: ParallelStyle, degree: int) -> None:
    """InputError for a layer that cannot be divided evenly."""
    if not isinstance(part, nn.Linear):
        return
    size = part.out_features if isinstance(style, ColwiseParallel) else part.in_features
    if size % degree:
        raise InputError(
            f"parallel.tensor={degree}: does not divide {name}, which has {size} rows or columns"
        )
