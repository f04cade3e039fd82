"""The strategy of a spec: the only place that knows all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from scaling.settings.run import Spec
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.data.workload import Workload
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.replicated import Replicas
from scaling.worker.parallel.sharded import Shards
from scaling.worker.parallel.strategy import Strategy


def strategy_of(
    spec: Spec,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    *,
    groups: Mapping[int, Group],
    world_size: int,
    device: Accelerator,
) -> Strategy:
    """How the spec spreads the workload over a trial's ranks. `optimizer`: over the workload's own parameters."""
    if spec.parallel.sharded:
        return Shards(spec, workload, groups=groups, world_size=world_size, device=device)
    return Replicas(spec, workload.module, optimizer, group=groups[world_size], solo=groups[1], device=device)
