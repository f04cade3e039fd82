"""`python -m scaling.worker.tryout` tries one step of a model; one line on stderr and status 2 when it fails."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from scaling.errors import InputError
from scaling.worker.workload import build


def tryout(target: str, args: dict[str, Any], batch: int) -> None:
    """Build, forward, backward, optimizer step; InputError says what failed."""
    stage = "the factory"
    try:
        workload = build(target, args)
        stage = "make_batch"
        inputs, targets = workload.make_batch(batch, torch.Generator().manual_seed(0))
        stage = "the loss of one forward"
        loss = workload.loss(workload.module(inputs), targets)
        stage = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        stage = "the optimizer"
        workload.optimizer(workload.module.parameters()).step()
    except InputError:
        raise
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        raise InputError(
            f"model._target_={target}: {stage} failed: {type(error).__name__}: {text}"
        ) from error


if __name__ == "__main__":
    try:
        tryout(**json.load(sys.stdin))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
