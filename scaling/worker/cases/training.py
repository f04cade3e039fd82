"""Training steps of a case under DDP, gradients and optimizer state in."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.cases import Case, Variant, cases, variants
from scaling.spec import Inject, Spec
from scaling.worker.arms import wrapped
from scaling.worker.checkpoint import checkpoint_activations
from scaling.worker.devices import Device
from scaling.worker.feed import Feed
from scaling.worker.groups import Group
from scaling.worker.inject import Faults
from scaling.worker.options import loading
from scaling.worker.precision import Precision
from scaling.worker.step import Loop, step_fields
from scaling.worker.workload import Workload

SETTLING = 2
"""Steps until DDP has rebuilt its buckets."""


class Training:
    """One wrapper at a time, and one batch: what a case takes is its own."""

    def __init__(
        self, spec: Spec, workload: Workload, groups: Mapping[int, Group], device: Device, *, rank: int
    ) -> None:
        self._spec = spec
        self._workload = workload
        self._groups = groups
        self._device = device
        self._seed = spec.seed * 1_000_003 + rank
        self._optimizer = workload.optimizer(workload.module.parameters())
        self._faults = Faults(Inject(), rank=rank, first_on_host=False)
        self._ddp: DistributedDataParallel | None = None
        self._loop: Loop | None = None
        asked = [case.batch // case.variant.accumulation_steps for case in cases(spec)]
        self.fewest = tuple(sorted({1, 2, *sorted(asked)[:1]}))
        self.least = self.fewest[0]
        self._always_checkpointing = all(variant.checkpointing for variant in variants(spec))
        self._checkpointing = contextlib.ExitStack()

    def open(self, world_size: int) -> None:
        """Wrap; two steps of the least batch make DDP's buckets and the optimizer's state what they stay."""
        self._ddp = wrapped(self._workload.module, self._spec.ddp, self._groups[world_size].data)
        self.use(self._smallest())
        for _ in range(SETTLING):
            self._running().held(reduce=True)
        self.drop()

    def bare(self, samples: int) -> None:
        """Without DDP."""
        self.least = samples
        self._take(self._smallest(), self._workload.module)
        self._running().local()
        self.drop()

    def settle(self, case: Case) -> None:
        """Gradients in DDP's buckets, or none: micro-steps that reduce nothing have them beside the buckets."""
        self.drop()
        self._optimizer.zero_grad(set_to_none=True)
        if case.variant.accumulation_steps == 1:
            self.use(self._smallest())
            self._share_buffers(asked=True)
            self._running().held(reduce=True)
            self.drop()

    def use(self, case: Case) -> None:
        """Make its batch; its precision and checkpointing act from here."""
        assert self._ddp is not None
        self._take(case, self._ddp)

    def alone(self) -> None:
        """A whole step that reduces nothing, and takes no buffers from rank 0 either."""
        self._share_buffers(asked=False)
        self._running().held(reduce=False)

    def together(self) -> None:
        """A training step."""
        self._share_buffers(asked=True)
        self._running().plain()

    def run(self, arm: str, steps: int, lead_in: int) -> list[list[int]]:  # noqa: ARG002
        """Steps with phase stamps, which tell what of the communication is exposed."""
        loop = self._running()
        clock = self._device.clock
        with clock.window((lead_in + steps) * loop.stamps):
            for _ in range(lead_in):
                loop.stamped()
            rows = [loop.stamped() for _ in range(steps)]
            self._device.synchronize()
        return [step_fields(clock.resolve(row)) for row in rows]

    def drop(self) -> None:
        """The batch, and gradients outside of DDP's buckets."""
        self._loop = None
        self._checkpointing.close()

    def close(self) -> None:
        """The wrapper with its buckets, and all gradients."""
        self.drop()
        self._ddp = None
        self._optimizer.zero_grad(set_to_none=True)
        self._device.release_memory()

    def _share_buffers(self, *, asked: bool) -> None:
        """Whether the next forward begins with rank 0's buffers, in a broadcast.

        DDP goes by the last forward that came to its end: another one on a rank that ran out of memory in its own.
        """
        assert self._ddp is not None
        self._ddp.require_forward_param_sync = asked

    def _smallest(self) -> Case:
        variant = Variant(
            precision=self._spec.precision, autocast=False, checkpointing=self._always_checkpointing
        )
        return Case(variant=variant, batch=self.least)

    def _running(self) -> Loop:
        assert self._loop is not None
        return self._loop

    def _take(self, case: Case, module: torch.nn.Module) -> None:
        self.drop()
        if case.variant.checkpointing:
            self._checkpointing.callback(checkpoint_activations(self._workload))
        self._loop = self._make(case, module)

    def _make(self, case: Case, module: torch.nn.Module) -> Loop:
        """Every micro-step has the same batch: what is in it takes no part in how long it takes."""
        variant = case.variant
        generator = torch.Generator().manual_seed(self._seed)
        batch = self._workload.make_batch(case.batch // variant.accumulation_steps, generator)
        return Loop(
            workload=self._workload,
            module=module,
            optimizer=self._optimizer,
            fetch=Feed([self._device.stage(batch)]).fetch,
            accumulation=variant.accumulation_steps,
            device=self._device,
            precision=Precision(variant.precision, self._device.type),
            faults=self._faults,
            load=loading(self._spec, self._device.load),
        )
