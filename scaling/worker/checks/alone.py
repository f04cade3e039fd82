"""The training loop of one process, as a tryout times it: no peers, no faults, one micro-step."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from scaling.spec.run import Inject, Spec
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.precision import Precision
from scaling.worker.data.feed import Feed, open_feed
from scaling.worker.data.workload import Workload
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.step import Loop
from scaling.worker.models.options import loading


def step_alone(
    spec: Spec,
    workload: Workload,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: int,
    *,
    device: Accelerator,
    precision: str,
    accumulate: Callable[[bool], contextlib.AbstractContextManager[Any]] | None = None,
) -> Callable[[], None]:
    """A step on `batch` samples of the run's data; it does not wait for the device. `accumulate`: as in Loop."""
    alone = dataclasses.replace(spec, data=dataclasses.replace(spec.data, workers=0))
    feed: Feed = open_feed(alone, workload, batch, rank=0, device=device)
    loop = Loop(
        workload=workload,
        module=module,
        optimizer=optimizer,
        fetch=feed.fetch,
        accumulation=1,
        device=device,
        precision=Precision(precision, device.type),
        faults=Faults(Inject(), rank=0, first_on_host=False),
        load=loading(spec, device.load),
        accumulate=accumulate,
    )

    def step() -> None:
        with device.clock.window(loop.stamps):
            loop.plain()

    return step


def timed_s(step: Callable[[], object], device: Accelerator) -> float:
    """How long a step takes until the device is done with it."""
    begin = time.monotonic()
    step()
    device.synchronize()
    return time.monotonic() - begin
