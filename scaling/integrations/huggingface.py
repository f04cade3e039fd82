"""transformers' Trainer, and what is built on it (TRL): `Trainer(..., callbacks=[ScalingCallback()])`.

A step is an optimizer's step with all of its micro-steps. The batches are fetched before it begins, and count as its
input, since a step lasts from the end of one to the end of the next. Evaluation and saving come between two steps.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from scaling.worker.probe.probe import Probe


class ScalingCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Records the steps of a Trainer; takes what `scaling.Probe` takes, but for the model."""

    def __init__(self, **options: Any) -> None:
        """`options`: run_dir, name, batch, live, log; figures go into the Trainer's own W&B run by default."""
        self._probe = Probe(**{"log": _into_wandb, **options})
        self._step = contextlib.ExitStack()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle of it records nothing, as that of a Probe."""
        return TrainerCallback, ()

    def on_train_begin(self, *_state: Any, **_more: Any) -> None:
        """Look for the model from the first step on."""
        self._probe.open()

    def on_step_begin(self, *_state: Any, **_more: Any) -> None:
        """Begin an optimizer's step. One that has not ended is left out: the training raised in it, and goes on."""
        error = RuntimeError("the step before did not end")
        self._step.__exit__(type(error), error, None)
        self._step.enter_context(self._probe.step())

    def on_step_end(self, *_state: Any, **_more: Any) -> None:
        """End it."""
        self._step.close()

    def on_evaluate(self, *_state: Any, **_more: Any) -> None:
        """What came behind the step was an evaluation."""
        self._probe._lap("evaluation")  # noqa: SLF001  # this is a part of the probe

    def on_save(self, *_state: Any, **_more: Any) -> None:
        """What came behind the step, or behind its evaluation, was a save."""
        self._probe._lap("save")  # noqa: SLF001

    def on_train_end(self, *_state: Any, **_more: Any) -> None:
        """Write what is left; after an exception the end of the process does so."""
        self._probe.close()


def _into_wandb(figures: Mapping[str, float]) -> None:
    """Into the run that the Trainer reports to, if there is one."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        run.log(figures)
