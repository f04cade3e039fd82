"""`python -m scaling.worker.checks.tryout`: try one step of a model before anything is launched.

It reads {"spec": ..., "batch": ..., "flops": ..., "time": ..., "step": ..., "began_s": ...} from standard input. If a
step that was asked for fails, or if `flops` is true and the step has none, it prints one line on standard error and
ends with status 2. With `time` it prints what steps take, a line after each batch (scaling.worker.checks.timing).
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
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.checks.timing import time_steps
from scaling.worker.checks.work import watching
from scaling.worker.data.feed import open_feed
from scaling.worker.data.workload import build
from scaling.worker.models.options import compiled, loading, shaped

SAMPLES = 2
"""Samples of the step whose FLOPs are counted; with one, batch normalisation fails."""


def run_step(spec: Spec, batch: int) -> None:
    """Build, fetch, forward, backward and optimizer step, all in this process. InputError says which of them failed."""
    what, stage = f"model._target_={spec.model.target}", "the factory"
    alone = dataclasses.replace(spec, data=dataclasses.replace(spec.data, workers=0))
    try:
        workload = shaped(build(spec.model.target, spec.model.args), spec)
        if spec.data.target is None:
            stage = "make_batch"
            inputs, targets = open_feed(alone, workload, batch, rank=0, device=Cpu()).fetch()
        else:
            what, stage = f"data._target_={spec.data.target}", "the first batch"
            inputs, targets = _pair(open_feed(alone, workload, batch, rank=0, device=Cpu()).fetch())
            what = f"model._target_={spec.model.target} on data={spec.data.name}"
        stage = "the loss of one forward"
        module = workload.module
        if (
            spec.compile and spec.topology.device == "cpu"
        ):  # compiling for a CUDA device is another compiler's job
            what, module = f"compile=true: {what}", compiled(module)
        loss = workload.loss(module(loading(spec, lambda given: given)(inputs)), targets)
        stage = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        stage = "the optimizer"
        workload.optimizer(workload.module.parameters()).step()
    except InputError:
        raise
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        raise InputError(f"{what}: {stage} failed: {type(error).__name__}: {text}") from error


def count_flops(spec: Spec, batch: int) -> int:
    """FLOPs of a step of a small synthetic batch. InputError when there are none, or when the step fails."""
    samples = min(batch, SAMPLES)
    run_step(dataclasses.replace(spec, data=Data(), compile=False), samples)
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
            run_step(asked, document["batch"])
        if document["time"]:
            time_steps(
                asked,
                document["began_s"],
                lambda found: print("timing", json.dumps(encode(found)), flush=True),
            )
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
