"""Measure one replica of a model that answers requests, without gradients and without peers.

Run training steps of a case under DDP, with gradients and optimizer state in memory.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import AnyStepRow, PlainRow
from scaling.settings.cases import LATENCY, Case, Variant, cases, variants
from scaling.settings.run import Spec
from scaling.worker.accelerator.accelerator import DTYPES, Accelerator, Precision
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.cases.runner import Runner
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload
from scaling.worker.measure.step import Loop, step_row
from scaling.worker.models.options import checkpoint_activations, loading
from scaling.worker.parallel.ddp import wrap
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.strategy import resolved
from scaling.worker.parallel.torch_private import limit_recompiles, tree_map_only
from scaling.worker.parallel.waits import Broadcasts
from scaling.worker.session.progress import beat

RECOMPILES = 512
"""Limit on compilations of a function; torch.compile silently falls back to eager beyond it."""


class Inference(Runner):
    """A request is a batch on the host. It is answered when the device has the outputs.

    Latency: one request at a time; the next begins when the last is answered, and each is timed by the host.
    Throughput: requests are issued without waiting and awaited at the end, as on a server under load.
    """

    def __init__(self, spec: Spec, workload: Workload, device: Accelerator, *, rank: int) -> None:
        self._workload, self._device = workload, device
        self._load = loading(spec, device.load)
        self._seed = spec.seed + rank
        self._module = workload.module.eval()
        self._call: Callable[[Any], Any] = self._module
        self._inputs: Any = None
        self._precision = Precision("fp32", device.type)
        self._dtype = torch.float32

    def use(self, case: Case) -> None:
        """Convert the parameters if the case runs without autocast, and make its batch."""
        self.drop()
        variant = case.variant
        self._precision = Precision(variant.precision, self._device.type)
        dtype = torch.float32 if variant.autocast else DTYPES.get(variant.precision, torch.float32)
        if dtype != self._dtype:  # in place: the values are synthetic, so rounding them does no harm
            self._module.to(dtype)
            self._dtype = dtype
        generator = torch.Generator().manual_seed(self._seed)
        inputs, _ = self._workload.make_batch(case.batch, generator)
        self._inputs = self._device.stage(tree_map_only(torch.Tensor, self._cast, inputs))
        self._call = self._compiled if variant.compile else self._module

    def alone(self) -> None:
        """Answer one request, without waiting for it."""
        self._answer()

    def together(self) -> None:
        """Answer one request and wait for it."""
        self._answer()
        self._device.synchronize()

    def run(self, arm: str, steps: int, lead_in: int) -> list[AnyStepRow]:
        """Begin and end of every request (latency), or one row for all of them (throughput)."""
        for _ in range(lead_in):
            self.together()
        if arm == LATENCY:
            return [self._timed(1) for _ in range(steps)]
        return [self._timed(steps)]

    def drop(self) -> None:
        """Release the batch; parameters stay."""
        self._inputs = None

    def _timed(self, requests: int) -> PlainRow:
        begin = now_ns()
        for _ in range(requests):
            self._answer()
        self._device.synchronize()
        return PlainRow(begin, now_ns())

    def _answer(self) -> None:
        with torch.inference_mode(), self._precision.autocast():
            self._call(self._load(self._inputs))
        beat()

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self._dtype) if tensor.is_floating_point() else tensor

    @functools.cached_property
    def _compiled(self) -> Callable[[Any], Any]:
        limit_recompiles(RECOMPILES)
        return torch.compile(self._module, dynamic=False)


SETTLING = 2
"""Steps until DDP has rebuilt its buckets."""


class Training(Runner):
    """Holds one wrapper and one batch at a time, so a case's memory is that case's alone."""

    def __init__(
        self, spec: Spec, workload: Workload, groups: Mapping[int, Group], device: Accelerator, *, rank: int
    ) -> None:
        self._spec, self._workload, self._groups, self._device = spec, workload, groups, device
        self._seed = spec.seed * 1_000_003 + rank
        self._optimizer = workload.optimizer(workload.module.parameters())
        self._ddp: DistributedDataParallel | None = None
        self._loop: Loop | None = None
        asked = [case.batch // case.variant.accumulation_steps for case in cases(spec)]
        self.fewest = tuple(sorted({1, 2, min(asked, default=1)}))
        self.least = self.fewest[0]
        self._always_checkpointing = all(variant.checkpointing for variant in variants(spec))
        self._checkpointing = contextlib.ExitStack()

    def open(self, world_size: int) -> None:
        """Wrap the model; two steps of the smallest batch settle DDP's buckets and the optimizer's state."""
        self._ddp = wrap(self._workload.module, self._spec.ddp, self._groups[world_size].data)
        self.use(self._smallest())
        for _ in range(SETTLING):
            self._running().held(reduce=True)
        self.drop()

    def bare(self, samples: int) -> None:
        """Run a local step without DDP."""
        self.least = samples
        self._take(self._smallest(), self._workload.module)
        self._running().local()
        self.drop()

    def settle(self, case: Case) -> None:
        """Leave gradients in DDP's buckets, or none with accumulation, whose gradients lie beside the buckets."""
        self.drop()
        self._optimizer.zero_grad(set_to_none=True)
        if case.variant.accumulation_steps == 1:
            self.use(self._smallest())
            self._share_buffers(asked=True)
            self._running().held(reduce=True)
            self.drop()

    def use(self, case: Case) -> None:
        """Make the case's batch; its precision and checkpointing apply from here on."""
        assert self._ddp is not None
        self._take(case, self._ddp)

    def alone(self) -> None:
        """Run a whole step that neither reduces gradients nor receives buffers from rank 0."""
        self._share_buffers(asked=False)
        self._running().held(reduce=False)

    def together(self) -> None:
        self._share_buffers(asked=True)
        self._running().plain()

    def run(self, arm: str, steps: int, lead_in: int) -> list[AnyStepRow]:  # noqa: ARG002
        """Run steps with phase stamps, which show how much of the communication is exposed."""
        loop = self._running()
        clock, waits = self._device.clock, Broadcasts(self._device)
        with waits.on(), clock.window((lead_in + steps) * (loop.stamps + 2 * loop.micro_steps)):
            for _ in range(lead_in):
                loop.stamped()
            waits.take()
            rows = [(loop.stamped(), waits.take()) for _ in range(steps)]
            self._device.synchronize()
        return [step_row(clock.resolve(row), resolved(each, clock.resolve)) for row, each in rows]

    def drop(self) -> None:
        """Release the batch and gradients outside DDP's buckets."""
        self._loop = None
        self._checkpointing.close()

    def close(self) -> None:
        """Release the wrapper with its buckets, and all gradients."""
        self.drop()
        self._ddp = None
        self._optimizer.zero_grad(set_to_none=True)
        self._device.release_memory()

    def _share_buffers(self, *, asked: bool) -> None:
        """Set whether the next forward begins with a broadcast of rank 0's buffers.

        DDP itself decides by the last forward that completed. A rank that ran out of memory in its forward would
        decide otherwise than its peers.
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
        """Make the loop of a case. Every micro-step gets the same batch, since the values do not change the time."""
        variant = case.variant
        self.drop()
        if variant.checkpointing:
            self._checkpointing.callback(checkpoint_activations(self._workload))
        generator = torch.Generator().manual_seed(self._seed)
        batch = self._workload.make_batch(case.batch // variant.accumulation_steps, generator)
        self._loop = Loop(
            workload=self._workload,
            module=module,
            optimizer=self._optimizer,
            fetch=Feed([self._device.stage(batch)]).fetch,
            accumulation=variant.accumulation_steps,
            device=self._device,
            precision=Precision(variant.precision, self._device.type),
            load=loading(self._spec, self._device.load),
        )
