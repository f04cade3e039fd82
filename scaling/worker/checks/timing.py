"""Time steps of a model in one process, so that a run can say beforehand how long it takes.

Batches grow from the least until one step takes long; the time of larger batches is extrapolated by
`scaling.spec.promise.Timing`.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable

import torch

from scaling.spec.cases import Case, batches, variants
from scaling.spec.promise import Sample, Timing
from scaling.spec.run import Spec
from scaling.spec.topology import SIMULATED
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.devices import open_device
from scaling.worker.cases.inference import Inference
from scaling.worker.checks.alone import step_alone, timed_s
from scaling.worker.checks.divided import time_divided
from scaling.worker.data.workload import Workload, build
from scaling.worker.models.options import compiled, loading, shaped

LEAST = 2
"""Samples of the smallest training step: batch normalisation fails on one."""
GROWTH = 4
"""Each batch that is timed is this many times the one before."""
STEP_S = 1.0
"""A batch is timed if its step is expected to take no longer."""
STEADY_S = 0.5
"""A step that is shorter is run once more before it is timed."""

Step = Callable[[], object]


def time_steps(spec: Spec, began_s: float, say: Callable[[Timing], None]) -> None:
    """Build the model and time its steps. `say` gets the timing after each batch, what is known so far.

    `began_s`: time.monotonic() at the start of the process. A batch on which a step fails is passed over: the model may
    take others, and the launch says how it failed.
    """
    torch.set_num_threads(spec.threads)
    device = open_device(spec, rank=0, local_rank=0)
    workload = shaped(build(spec.model.target, spec.model.args), spec)
    workload.module.to(device.torch_device)
    timing = Timing(
        start_s=time.monotonic() - began_s,
        steps=(),
        parameters_bytes=sum(
            p.numel() * p.element_size() for p in workload.module.parameters() if p.requires_grad
        ),
    )
    inference = spec.task == "inference"
    make = _request(spec, workload, device) if inference else _training(spec, workload, device)
    batch: int | None = min(1 if inference else LEAST, largest(spec))
    while batch is not None:
        begin = time.monotonic()
        try:
            step = make(0, batch)
            made_s = time.monotonic() - begin
            first_s, took_s = _first(step, device)
        except Exception as error:  # noqa: BLE001  # a model may raise anything
            print(f"batch {batch}: {type(error).__name__}: {error}", file=sys.stderr)
            batch = following(spec, batch, timing)
            continue
        timing = dataclasses.replace(timing, make_s=made_s / batch)
        if not timing.steps:
            timing = dataclasses.replace(timing, first_s=max(0.0, first_s - took_s))
        timing = dataclasses.replace(timing, steps=(*timing.steps, Sample(batch=batch, step_s=took_s)))
        say(timing)
        batch = following(spec, batch, timing)
    if timing.steps and spec.tensor_degrees and device.type != SIMULATED:
        last = timing.steps[-1]
        timing = dataclasses.replace(
            timing, divided=time_divided(spec, workload, device, last.batch, last.step_s)
        )
        say(timing)
    others = len(variants(spec)) if spec.by_case and timing.steps else 1
    for variant in range(1, others):
        least = timing.steps[0]
        _, took_s = _first(make(variant, least.batch), device)
        ratio = took_s / max(least.step_s, 1e-9)
        timing = dataclasses.replace(timing, variants=(*timing.variants, ratio))
        say(timing)


def largest(spec: Spec) -> int:
    """The largest batch that is asked for, samples of a micro-step."""
    most = max(batches(spec)) if spec.by_case else max(spec.batch_at(n) for n in spec.world_sizes)
    return max(1, most // spec.accumulation_steps)


def following(spec: Spec, batch: int, timing: Timing) -> int | None:
    """The batch to time after `batch`; None when enough is known. Two batches are timed however long they take."""
    most, known = largest(spec), len(timing.steps)
    if batch >= most:
        return None
    after = min(most, batch * GROWTH)
    if known == 0 or timing.step_s(after) <= STEP_S:
        return after
    return min(most, 2 * batch) if known == 1 else None


def _first(step: Step, device: Accelerator) -> tuple[float, float]:
    """Seconds of the first step, and of a steady one: long steps are run only once more."""
    first_s = timed_s(step, device)
    took_s = timed_s(step, device)
    if took_s < STEADY_S:
        took_s = min(took_s, timed_s(step, device))
    return first_s, took_s


def _request(spec: Spec, workload: Workload, device: Accelerator) -> Callable[[int, int], Step]:
    """Makes a request of a variant and a batch. Nothing is compiled: that takes longer than a tryout may."""
    runner = Inference(workload, device, seed=spec.seed, load=loading(spec, device.load))

    def make(variant: int, batch: int) -> Step:
        settings = dataclasses.replace(variants(spec)[variant], compile=False)
        runner.use(Case(variant=settings, batch=batch))
        return runner.together

    return make


def _training(spec: Spec, workload: Workload, device: Accelerator) -> Callable[[int, int], Step]:
    """Makes a training step of one micro-step, on batches from the run's data."""
    module = workload.module
    if spec.compile and device.type == "cpu":
        module = compiled(module)
    optimizer = workload.optimizer(workload.module.parameters())

    def make(variant: int, batch: int) -> Step:
        precision = variants(spec)[variant].precision if spec.by_case else spec.precision
        return step_alone(spec, workload, module, optimizer, batch, device=device, precision=precision)

    return make
