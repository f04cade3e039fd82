"""`python -m scaling.worker.tryout` tries one step of a model on its data; one line on stderr, status 2."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from scaling.codec import decode
from scaling.errors import InputError
from scaling.spec import Spec
from scaling.worker.devices import Device
from scaling.worker.feed import open_feed
from scaling.worker.options import compiled, loading, shaped
from scaling.worker.workload import build


def tryout(spec: Spec, batch: int) -> None:
    """Build, fetch, forward, backward, optimizer step, all in this process; InputError says what failed."""
    what, stage = f"model._target_={spec.model.target}", "the factory"
    alone = dataclasses.replace(spec, data=dataclasses.replace(spec.data, workers=0))
    try:
        workload = shaped(build(spec.model.target, spec.model.args), spec)
        if spec.data.target is None:
            stage = "make_batch"
            inputs, targets = open_feed(alone, workload, batch, rank=0, device=Device()).fetch()
        else:
            what, stage = f"data._target_={spec.data.target}", "the first batch"
            inputs, targets = _pair(open_feed(alone, workload, batch, rank=0, device=Device()).fetch())
            what = f"model._target_={spec.model.target} on data={spec.data.name}"
        stage = "the loss of one forward"
        module = workload.module
        if spec.compile and spec.topology.device == "cpu":  # a CUDA device's compiler is not the CPU's
            what, module = f"compile=true: {what}", compiled(module)
        loss = workload.loss(module(loading(spec, _as_it_is)(inputs)), targets)
        stage = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        stage = "the optimizer"
        workload.optimizer(workload.module.parameters()).step()
    except InputError:
        raise
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        raise InputError(f"{what}: {stage} failed: {type(error).__name__}: {text}") from error


def _as_it_is(batch: Any) -> Any:
    return batch


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise TypeError(f"samples of (inputs, targets) are expected, found {type(batch).__name__}")
    return batch[0], batch[1]


if __name__ == "__main__":
    document = json.load(sys.stdin)
    try:
        tryout(decode(Spec, document["spec"]), document["batch"])
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
