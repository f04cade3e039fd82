"""Build the module that is trained over a group with DDP, and name what it reduces."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.spec.run import DEFAULT_BUCKET_MB, Ddp
from scaling.worker.models.options import compiled
from scaling.worker.parallel.compression import WIRE, register


class Wrapping:
    """Wraps one module over any of a launch's groups.

    Wrappers share the module, unless DDP counts gradients from backward to backward (`static_graph`) or parameters
    that had one (`find_unused_parameters`). DDP would then also count the gradients of other wrappers and of bare
    steps, and skip or misplace reductions, so each wrapper gets a copy of the module.
    """

    def __init__(self, module: torch.nn.Module, settings: Ddp, *, compiles: bool) -> None:
        self._module, self._settings, self._compiles = module, settings, compiles
        self.copies = settings.static_graph or settings.find_unused_parameters
        """Whether each wrapper has its own copy of the module."""
        self.wire_dtype = WIRE.get(settings.comm_hook, torch.float32)
        """Type of the elements that are reduced."""

    def bare(self) -> torch.nn.Module:
        """The module for steps without DDP."""
        return self._compiled(self._module)

    def without_hook(self, group: dist.ProcessGroup) -> DistributedDataParallel:
        """The module over a group, without a communication hook."""
        module = copy.deepcopy(self._module) if self.copies else self._module
        return wrap(self._compiled(module), self._settings, group)

    def trained(self, group: dist.ProcessGroup) -> DistributedDataParallel:
        """The module over a group as the user trains it."""
        wrapper = self.without_hook(group)
        register(wrapper, self._settings.comm_hook, group)
        return wrapper

    def _compiled(self, module: torch.nn.Module) -> torch.nn.Module:
        return compiled(module) if self._compiles else module


def wrap(module: torch.nn.Module, settings: Ddp, group: dist.ProcessGroup) -> DistributedDataParallel:
    """The module as DDP over a group, without a communication hook."""
    return DistributedDataParallel(
        module,
        process_group=group,
        # Given a number, DDP also sizes its first bucket by it. Only None keeps its default of 1 MiB there.
        bucket_cap_mb=None if settings.bucket_cap_mb == DEFAULT_BUCKET_MB else settings.bucket_cap_mb,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
        static_graph=settings.static_graph,
        find_unused_parameters=settings.find_unused_parameters,
    )


def logging_data(ddp: DistributedDataParallel) -> dict[str, Any]:
    """DDP's own report: settings, buckets, times."""
    return dict(ddp._get_ddp_logging_data())  # type: ignore[no-untyped-call]  # noqa: SLF001


def bucket_parameters(ddp: DistributedDataParallel) -> list[list[int]]:
    """Indices of each bucket's parameters, in the order of reduction; empty before DDP's second step."""
    text = str(logging_data(ddp).get("rebuilt_per_bucket_param_indices") or "")
    return [[int(i) for i in part.split()] for part in text.split(",") if part.strip()]


def bucket_bytes(ddp: DistributedDataParallel) -> list[int]:
    """Sizes of the buckets in the order of reduction, bytes. DDP settles them in its second step."""
    data = logging_data(ddp)
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return [int(size) for size in str(text).split(",") if size.strip()]


def has_own_hook(ddp: DistributedDataParallel) -> bool:
    """Whether a communication hook was registered."""
    return bool(getattr(ddp, "_comm_hooks", None))
