"""Which modules of a model are sharded together: its units."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from scaling.errors import InputError
from scaling.worker.models.checkpoint import repeated

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
