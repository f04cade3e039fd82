"""`python -m scaling.worker.checks.tryout`: count a step of a model; one line and status 2 when it has no FLOPs."""

from __future__ import annotations

import dataclasses
import json
import sys

import torch

from scaling.codec import decode
from scaling.errors import InputError
from scaling.spec import Data, Spec
from scaling.worker.checks.work import watching
from scaling.worker.tryout import tryout
from scaling.worker.workload import build

SAMPLES = 2
"""Enough to count by; one would break a batch norm."""


def count(spec: Spec, batch: int) -> int:
    """FLOPs of a step of a small batch. InputError when there are none, or the step fails.

    A step that fails for the devices its tensors are on is for the checks to name: that is no bad input.
    """
    tryout(dataclasses.replace(spec, data=Data(), compile=False), min(batch, SAMPLES))
    workload = build(spec.model.target, spec.model.args)
    inputs, targets = workload.make_batch(min(batch, SAMPLES), torch.Generator().manual_seed(0))
    with watching("cpu") as work:
        workload.loss(workload.module(inputs), targets).backward()  # type: ignore[no-untyped-call]
    flops = sum(operator.flops for operator in work.operators())
    if not flops:
        raise InputError(
            f"model._target_={spec.model.target}: a step has no FLOPs (no matrix product and no convolution); "
            "the doctor needs a model that computes"
        )
    return flops


if __name__ == "__main__":
    document = json.load(sys.stdin)
    try:
        count(decode(Spec, document["spec"]), document["batch"])
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
