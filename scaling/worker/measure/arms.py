"""The arms of a trial: each runs a loop over the bare module, or over a wrapper that lives for one block.

At any time there is one optimizer and at most one wrapper, whatever the number of world sizes and arms. So measuring
takes no more memory than training, and no arm runs beside the hooks of another one's wrapper.

`Settings` say how a spec builds and feeds the training loops; `strategy_of` alone knows all strategies.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from scaling.settings.plan import DETAILS, WHOLE, Content, Trial
from scaling.settings.run import KINDS, Spec
from scaling.settings.schedule import (
    BARE_ALL,
    BARE_ONE,
    DDP_SOLO,
    PLAIN,
    PROBE,
    VARIANT,
    Message,
    half_batch,
    settling_steps,
)
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
from scaling.worker.parallel.streams import agreed


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
        self._scaler_of = functools.cache(lambda _use: precision.scaler())
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
        loop = functools.partial(self._loop, fetch=feed.fetch, scaler=self._scaler_of(use))
        if isinstance(model, torch.nn.Module):
            return loop(module=model, optimizer=self._optimizer)
        return loop(module=model.module, optimizer=model.optimizer, accumulate=model.accumulate)


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


ALL_REDUCE = KINDS.index("all_reduce")
BARE, HALF, TRIED = "bare", "half", "tried"
"""Uses of the module, beside PLAIN, DDP_SOLO and VARIANT. Each has its own graphs and its own scale of gradients."""


class Arms:
    """All arms of one trial on one rank. Only one is open at a time."""

    def __init__(
        self,
        *,
        spec: Spec,
        variant: Spec | None,
        trial: Trial,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        groups: Mapping[int, Group],
        device: Accelerator,
        precision: Precision,
        faults: Faults,
        feed: Callable[[int], Feed],
        content: Content = WHOLE,
    ) -> None:
        """`optimizer`: the launch's, over the workload's parameters. `content`: what is measured."""
        n = trial.world_size
        self._control = groups[n].control
        settings = functools.partial(
            Settings,
            trial=trial,
            workload=workload,
            optimizer=optimizer,
            device=device,
            precision=precision,
            faults=faults,
            feed=feed,
            groups=groups,
        )
        self._main = settings(spec)
        self._other = None if variant is None else settings(variant)
        self._device = device
        self.module, self.optimizer = workload.module, optimizer
        """Those of the launch, which all arms train."""
        self.load, self.compiles = self._main.load, spec.compile
        self.strategy = self._main.strategy
        self.wire_dtype = self.strategy.wire_dtype
        """Type of the elements that are reduced."""
        apart = self._other is None and n > 1 and content.has(DETAILS)
        self.half_batch = half_batch(spec) if apart else None
        """Samples of a step with half of the batch; None where none is measured."""
        if self.half_batch is not None:
            feed(self.half_batch // spec.accumulation_steps)  # make its batches now
        self.varies = variant is not None
        """Whether other settings are measured beside the run's."""
        self.apart = apart
        """Whether a step is taken apart: DDP alone and the detailed probe run."""
        self.whole = True
        """Whether a rank has room for the whole model's training, which it needs to run alone."""
        self.communicator_bytes: int | None = None
        """Growth of device memory outside torch's allocator when the first wrapper over the group was made."""
        self._synced: set[str] = set()
        self._wire: list[Message] = []
        self.buckets: list[int] = []
        """Bytes of each bucket or unit, in the order of reduction."""
        self.held: dict[str, int] = {}
        """Bytes that this rank holds under the strategy, by `parameters`, `gradients`, `optimizer`."""
        self.unsharded_bytes = 0
        """Most bytes of gathered parameters at once; 0 where nothing is gathered."""
        self.activations_bytes: int | None = None
        """What one forward leaves in memory for its backward, with its batch; None on a CPU, where nobody counts."""

    def tried(self) -> None:
        """Run two whole steps in which no rank needs another: the second has all that any step has in memory."""
        for settings, use in ((self._main, PLAIN), (self._other, VARIANT)):
            if settings is None:
                continue
            loop = settings.loop(settings.strategy.apply(use, alone=True, sync=False), TRIED)
            try:
                loop.plain()
                activations = loop.weighed(self._device.held_bytes)
                self._device.synchronize()
                if use == PLAIN:
                    self.activations_bytes = activations
            finally:
                loop.release()
                self.optimizer.zero_grad(set_to_none=True)

    def without_whole(self) -> None:
        """No rank has room for the whole model's training: only arms over all ranks run."""
        self.whole, self.half_batch = False, None
        self.optimizer.state.clear()  # it may have run out of memory half way
        self._device.release_memory()

    def compile(self, arm: str, *, half: bool) -> None:
        """Run a step of an arm in which no rank needs another, since its graphs take ranks unequal times to make."""
        settings, use = self._use(arm, half=half)
        strategy = settings.strategy
        model: Parallelized | torch.nn.Module = (
            strategy.module(use)
            if use in (BARE, HALF)
            else strategy.apply(use, alone=use == DDP_SOLO or not strategy.steps_alone, sync=False)
        )
        loop = settings.loop(model, TRIED, self.half_batch if use == HALF else None)
        loop.local()
        loop.release()

    def warmed(self) -> tuple[tuple[str, bool, bool], ...]:
        """(arm, detailed, half batch) of each use of the module, in the order of warm-up: plain comes last."""
        return (
            *([(BARE_ALL, False, False)] if self.whole else []),
            *([(BARE_ALL, False, True)] if self.half_batch is not None else []),
            *([(VARIANT, False, False)] if self._other is not None else []),
            *([(DDP_SOLO, False, False)] if self.apart and self.whole else []),
            *([(PROBE, True, False)] if self.apart else []),
            (PLAIN, False, False),
        )

    @contextlib.contextmanager
    def open(
        self, arm: str, *, detailed: bool = False, half: bool = False, timed: bool = True
    ) -> Iterator[Opened]:
        """Inside, the arm's loop can run; its wrapper is made, takes its first steps, and is freed at the end.

        The probe runs on the plain wrapper. `half`: with half of the batch. `timed`: details that would disturb a step
        are left out.
        """
        settings, use = self._use(arm, half=half)
        if use in (BARE, HALF):
            batch = self.half_batch if use == HALF else None
            yield Opened(loop=settings.loop(settings.strategy.module(use), use, batch))
            return
        model = self._parallelized(settings, use)
        loop, detail = settings.loop(model, use), Detail()
        try:
            for _ in range(settings.settling):
                loop.plain()
            model.settle()
            if use == PLAIN:
                self.buckets, self.held = model.buckets, model.bytes()
            why = agreed(model.withheld(), self._control) if detailed and use == PLAIN else ""
            detail = model.detail(detailed=detailed and not (why and timed))
            del model  # the loop alone keeps it
            yield Opened(loop=loop, detail=detail, settled=settings.settling, withheld=why)
        finally:
            self.unsharded_bytes = max(self.unsharded_bytes, detail.unsharded_bytes)
            loop.release()

    def _use(self, arm: str, *, half: bool) -> tuple[Settings, str]:
        """What an arm uses the module for, and under which settings."""
        if arm in (BARE_ONE, BARE_ALL):
            return self._main, HALF if half else BARE
        return self._settings(arm), arm if arm in (VARIANT, DDP_SOLO) else PLAIN

    def _settings(self, arm: str) -> Settings:
        return self._other if arm == VARIANT and self._other is not None else self._main

    def _parallelized(self, settings: Settings, use: str) -> Parallelized:
        """A new module over its ranks. The first of a use compares and sends the parameters, as a training does."""
        alone = use == DDP_SOLO
        first, looked = use not in self._synced, not alone and not self._synced - {DDP_SOLO}
        before = self._device.foreign_bytes() if looked else None
        model = settings.strategy.apply(use, alone=alone, sync=first)
        if looked:
            self.communicator_bytes = grown(before, self._device.foreign_bytes())
        self._synced.add(use)
        return model

    def micro_steps(self, arm: str) -> int:
        """Micro-steps of one optimizer step; for replay and sweep, the spec's."""
        return self._settings(arm).accumulation

    def messages(self, wire: Sequence[Message]) -> None:
        """Note the collectives of a step, in the order of launch. A communication hook may change their bytes."""
        self._wire = list(wire)

    def stamps(self, opened: Opened) -> int:
        """Largest number of stamps in a step of an open arm."""
        loop, detail = opened.loop, opened.detail
        if not detail.stamps:
            return loop.stamps
        most = max(detail.stamps, 2 * len(self.buckets), 2 * len(self._wire))
        return loop.stamps + most * loop.micro_steps

    def feed(self, arm: str) -> Feed:
        return self._settings(arm).feed

    def feeds(self) -> list[Feed]:
        """All feeds of the trial."""
        return list({id(feed): feed for feed in (self.feed(PLAIN), self.feed(VARIANT))}.values())

    def wire(self) -> list[Message]:
        """The collectives of a step, in the order of launch."""
        return self._wire or [Message(ALL_REDUCE, size) for size in self.buckets]


def grown(before: int | None, after: int | None) -> int | None:
    """What a communicator took of a device, bytes. None where it did not grow then: no communicator takes nothing."""
    if before is None or after is None or after <= before:
        return None
    return after - before
