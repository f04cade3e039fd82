"""`python -m scaling.worker.checks.tryout`: try one step of a model before anything is launched.

It reads {"spec": ..., "batch": ..., "flops": ..., "time": ..., "step": ..., "began_s": ...} from standard input. If a
step that was asked for fails, or if `flops` is true and the step has none, it prints one line on standard error and
ends with status 2. With `time` it prints what steps take, a line after each batch (scaling.worker.checks.timing).

The step has two samples and runs on the device that the run has here. Where the run's devices are elsewhere it runs on
the CPU. That one may lack what they have, so a failure there ends with status 75: it shows nothing.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import torch

from scaling.errors import InputError
from scaling.records.codec import decode, encode
from scaling.spec.run import Data, Spec
from scaling.spec.topology import CPU
from scaling.worker.accelerator.accelerator import Accelerator, Cpu
from scaling.worker.accelerator.devices import open_device
from scaling.worker.accelerator.memory import is_out_of_memory
from scaling.worker.accelerator.precision import Precision
from scaling.worker.checks.timing import time_steps
from scaling.worker.checks.work import watching
from scaling.worker.data.feed import open_feed
from scaling.worker.data.workload import build
from scaling.worker.models.options import compiled, loading, shaped
from scaling.worker.parallel.shard import require_own_reduces

SAMPLES = 2
"""Samples of the step; with one, batch normalisation fails."""
SHOWS_NOTHING = 75
"""Exit status where a step failed on another kind of device than the run's."""


class StepError(InputError):
    """A step failed, or something on the way to it."""


def device_here(spec: Spec) -> Accelerator:
    """The device of the run if it is on this machine, else the CPU. InputError where it has none."""
    if spec.launcher == "slurm":
        return Cpu()
    try:
        return open_device(spec, rank=0, local_rank=0)
    except RuntimeError as error:
        raise InputError(str(error)) from error


def run_step(spec: Spec, batch: int, device: Accelerator) -> None:
    """Build, fetch, forward, backward and optimizer step of two samples. StepError says which of them failed.

    InputError where this torch lacks what the run asks of it.
    """
    if spec.fsdp.separate_reduce_scatter_group:
        require_own_reduces()
    what, stage = f"model._target_={spec.model.target}", "the factory"
    alone = dataclasses.replace(spec, data=dataclasses.replace(spec.data, workers=0))
    samples, load = min(batch, SAMPLES), loading(spec, device.load)
    precision = Precision(spec.precision, device.type)
    try:
        workload = shaped(build(spec.model.target, spec.model.args), spec)
        workload.module.to(device.torch_device)
        if spec.data.target is None:
            stage = "make_batch"
            batched = open_feed(alone, workload, samples, rank=0, device=device).fetch()
        else:
            what, stage = f"data._target_={spec.data.target}", "the first batch"
            batched = _pair(open_feed(alone, workload, samples, rank=0, device=device).fetch())
            what = f"model._target_={spec.model.target} on data={spec.data.name}"
        stage = "the loss of one forward"
        inputs, targets = load(batched)
        module = workload.module
        if spec.compile and device.type == CPU:  # compiling for a CUDA device is another compiler's job
            what, module = f"compile=true: {what}", compiled(module)
        with precision.autocast():
            loss = workload.loss(module(inputs), targets)
        stage = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        stage = "the optimizer"
        workload.optimizer(workload.module.parameters()).step()
        device.synchronize()
    except InputError:
        raise
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        raise StepError(f"{what}: {stage} failed: {type(error).__name__}: {text}") from error


def count_flops(spec: Spec, batch: int) -> int:
    """FLOPs of a step of a small synthetic batch. InputError when there are none, or when the step fails."""
    samples = min(batch, SAMPLES)
    run_step(dataclasses.replace(spec, data=Data(), compile=False), samples, Cpu())
    workload = build(spec.model.target, spec.model.args)
    inputs, targets = workload.make_batch(samples, torch.Generator().manual_seed(0))
    with watching("cpu") as work:
        workload.loss(workload.module(inputs), targets).backward()  # type: ignore[no-untyped-call]
    flops = sum(operator.flops for operator in work.operators())
    if not flops:
        raise InputError(
            f"model._target_={spec.model.target}: a step has no FLOPs (no matrix product and no convolution); "
            "the doctor needs a model that computes"
        )
    return flops


def _may_fit_together(spec: Spec, error: InputError) -> bool:
    """Whether one rank alone has no room for the model, and several that share it may have some: the launch tells."""
    shared = max(spec.world_sizes) > 1 and any(one.parallel.sharded for one in spec.strategies)
    return shared and isinstance(error, StepError) and is_out_of_memory(error.__cause__ or error)


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise TypeError(f"samples of (inputs, targets) are expected, found {type(batch).__name__}")
    return batch[0], batch[1]


if __name__ == "__main__":
    document = json.load(sys.stdin)
    asked = decode(Spec, document["spec"])
    try:
        if document["flops"]:
            count_flops(asked, document["batch"])
        elif document["step"]:
            run_step(asked, document["batch"], device_here(asked))
        if document["time"]:
            time_steps(
                asked,
                document["began_s"],
                lambda found: print("timing", json.dumps(encode(found)), flush=True),
            )
    except InputError as error:
        print(error, file=sys.stderr)
        if _may_fit_together(asked, error):
            sys.exit(0)
        elsewhere = asked.launcher == "slurm" and asked.topology.accelerated
        sys.exit(SHOWS_NOTHING if elsewhere and isinstance(error, StepError) else error.exit_code)
