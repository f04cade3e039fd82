"""A model with real parameters and real DDP traffic whose compute is sleeps.

A sleeping rank needs no core, so several ranks give valid results on few cores, and the compute time is known
beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel.style import ParallelStyle

from scaling.settings.topology import SIMULATED
from scaling.worker.accelerator.clock import note_sleep, now_ns, sleep
from scaling.worker.data.workload import Workload, sgd
from scaling.worker.parallel.sequence import Parts

FORWARD_SHARE = 1 / 3
"""Share of a step's compute in forward; backward takes the rest, the usual two to one."""
_Change: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
LATE_MAX_S = 5e-4
"""Largest lateness of a timer that is made up for. A busy machine causes more, which stays visible."""


class Nap:
    """Sleeps whose total lasts as long as requested.

    A timer wakes its thread about 0.1 ms late, and later if another rank's timer fires at the same instant, as happens
    once communication has aligned the ranks. Over the many short sleeps of a step this would look like compute slowed
    down by communication. Each sleep is therefore shortened by the lateness of the one before.
    """

    def __init__(self) -> None:
        self._owed_s = 0.0

    def __call__(self, seconds: float, device: torch.device) -> None:
        """Sleep, shortened by the lateness of the last sleep. On a simulated accelerator a kernel sleeps."""
        if device.type == SIMULATED:
            torch.get_device_module(device).sleep_us(seconds * 1e6)
            note_sleep(round(seconds * 1e9))
            return
        wanted = seconds - self._owed_s
        begin = now_ns()
        if wanted > 0:
            sleep(wanted)
        self._owed_s = min(max((now_ns() - begin) / 1e9 - wanted, 0.0), LATE_MAX_S)


class _SleepingLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float, nap: Nap) -> torch.Tensor:
        ctx.seconds, ctx.nap = seconds, nap
        ctx.save_for_backward(weight)
        nap(seconds * FORWARD_SHARE, x.device)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        ctx.nap(ctx.seconds * (1 - FORWARD_SHARE), grads[0].device)
        return grads[0], torch.zeros_like(weight), None, None


class _Layer(nn.Module):
    def __init__(self, elements: int, seconds_a_sample: float, nap: Nap) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self.seconds_a_sample, self.nap = seconds_a_sample, nap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seconds = self.seconds_a_sample * x.shape[0]
        return _SleepingLayer.apply(x, self.weight, seconds, self.nap)  # type: ignore[no-any-return, no-untyped-call]


class _Divided(ParallelStyle):
    """A layer of which each rank has a part of the weights and of the sleep; what the ranks have is added up behind it.

    In backward the gradient of its input is added up, as in a layer whose matrices are divided.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, _Layer)
        part = distribute_tensor(module.weight, device_mesh, [Shard(0)], src_data_rank=None)
        module.weight = nn.Parameter(part)
        module.seconds_a_sample /= device_mesh.size()
        before, behind = self._around(device_mesh)
        module.register_forward_pre_hook(lambda _module, inputs: (before(inputs[0]), *inputs[1:]))
        module.register_forward_hook(lambda _module, _inputs, output: behind(output / device_mesh.size()))
        return module

    def _around(self, mesh: DeviceMesh) -> tuple[_Change, _Change]:
        def before(rows: torch.Tensor) -> torch.Tensor:
            whole = DTensor.from_local(rows, mesh, [Replicate()], run_check=False)
            return whole.to_local(grad_placements=[Partial()])

        def behind(output: torch.Tensor) -> torch.Tensor:
            parts = DTensor.from_local(output, mesh, [Partial()], run_check=False)
            return parts.redistribute(placements=[Replicate()]).to_local()

        return before, behind


class _DividedByTokens(_Divided):
    """Divided layers with sequence parallel: between layers each rank has a part of what a sample has there."""

    def __init__(self, tokens: int, *, first: bool, last: bool) -> None:
        self._tokens, self._first, self._last = tokens, first, last

    def _around(self, mesh: DeviceMesh) -> tuple[_Change, _Change]:
        parts = Parts(mesh, self._tokens)

        def before(rows: torch.Tensor) -> torch.Tensor:
            part = parts.enter(rows) if self._first else rows
            return parts.gathered(part).to_local(grad_placements=[Partial()])

        def behind(output: torch.Tensor) -> torch.Tensor:
            part = parts.scattered(output)
            return parts.leave(part) if self._last else part

        return before, behind


def build(
    param_mb: float, layers: int, compute_ms: float, reference_batch: int, activations: int = 1
) -> Workload:
    """A model with `param_mb` MiB of fp32 in equal layers. A step of `reference_batch` samples sleeps `compute_ms`.

    `activations`: numbers of fp32 that a sample has between layers, which ranks that divide a layer add up.
    """
    elements = max(1, round(param_mb * 2**20 / 4 / layers))
    seconds_a_sample = compute_ms / 1e3 / reference_batch / layers

    def make_batch(n: int, _generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(n, activations, requires_grad=True), torch.zeros(n, 1)

    def loss(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        return outputs.mean()

    nap = Nap()  # one for all layers: they run one after the other
    module = nn.Sequential(*[_Layer(elements, seconds_a_sample, nap) for _ in range(layers)])
    return Workload(
        module=module,
        make_batch=make_batch,
        loss=loss,
        optimizer=sgd,
        tensor_plan={str(index): _Divided() for index in range(layers)},
        sequence_plan={
            str(index): _DividedByTokens(activations, first=not index, last=index == layers - 1)
            for index in range(layers)
        },
    )
