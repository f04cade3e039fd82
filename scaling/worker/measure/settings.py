"""How a spec builds and feeds the training loops of one world size, and one arm of it while its block runs.

The strategy of a spec: the only place that knows all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from scaling.settings.plan import Trial
from scaling.settings.run import Spec
from scaling.settings.schedule import settling_steps
from scaling.worker.accelerator.accelerator import Accelerator, Precision
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.step import Loop
from scaling.worker.models.options import loading
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.replicated import Replicas
from scaling.worker.parallel.sharded import Shards
from scaling.worker.parallel.strategy import Detail, Parallelized, Strategy


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


class Settings:
    """How a spec builds and feeds the training loops of one world size."""

    def __init__(
        self,
        spec: Spec,
        *,
        trial: Trial,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        device: Accelerator,
        precision: Precision,
        faults: Faults,
        feed: Callable[[int], Feed],
        groups: Mapping[int, Group],
    ) -> None:
        """`feed` returns the feed of a batch size."""
        self._feed_of, self.accumulation = feed, spec.accumulation_steps
        self.feed = feed(spec.batch_at(trial.world_size) // spec.accumulation_steps)
        self.load = loading(spec, device.load)
        self.strategy = strategy_of(
            spec, workload, optimizer, groups=groups, world_size=trial.world_size, device=device
        )
        self._optimizer = optimizer
        self.settling = settling_steps(spec)
        self._new_scaler = precision.scaler
        self._scalers: dict[str, torch.amp.GradScaler] = {}
        self._loop = functools.partial(
            Loop,
            workload=workload,
            accumulation=spec.accumulation_steps,
            device=device,
            faults=faults,
            load=self.load,
            precision=precision,
        )

    def loop(self, model: Parallelized | torch.nn.Module, use: str, batch: int | None = None) -> Loop:
        """The training loop of a module, bare or over ranks; `batch`: samples of a step, if not the trial's.

        The scale of fp16 gradients outlives the loop: it belongs to the use.
        """
        feed = self.feed if batch is None else self._feed_of(batch // self.accumulation)
        if use not in self._scalers:
            self._scalers[use] = self._new_scaler()
        if isinstance(model, torch.nn.Module):
            return self._loop(
                module=model, optimizer=self._optimizer, fetch=feed.fetch, scaler=self._scalers[use]
            )
        return self._loop(
            module=model.module,
            optimizer=model.optimizer,
            accumulate=model.accumulate,
            fetch=feed.fetch,
            scaler=self._scalers[use],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One arm while its block runs."""

    loop: Loop
    detail: Detail = field(default_factory=Detail)
    """What the block records of communication."""
    withheld: str = ""
    """Why it was to record collectives and does not (BlockRecord.withheld)."""
    settled: int = 0
    """Steps that its new wrapper has taken."""
