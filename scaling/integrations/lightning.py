"""Lightning's Trainer: `Trainer(..., callbacks=[ScalingCallback()])`.

Lightning counts batches; a step here is an optimizer's step, with all batches that it accumulates. A batch is fetched
before its begin is told, and counts as input, since a step lasts from the end of one to the end of the next.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from scaling.worker.probe.probe import Probe

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning.callbacks import Callback  # type: ignore[import-not-found,unused-ignore]
else:
    from lightning.pytorch.callbacks import Callback  # type: ignore[import-not-found,unused-ignore]


class ScalingCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Records the steps of a Trainer; takes what `scaling.Probe` takes, but for the model."""

    def __init__(self, **options: Any) -> None:
        """`options`: run_dir, name, batch, live, log; figures go to the Trainer's own loggers by default."""
        self._trainer: Any = None
        self._probe = Probe(**{"log": self._log, **options})
        self._step: contextlib.AbstractContextManager[Any] | None = None
        self._updates = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle of it records nothing, as that of a Probe."""
        return Callback, ()

    def on_train_start(self, trainer: Any, module: Any) -> None:  # noqa: ARG002
        """Look for the model from the first step on."""
        self._trainer = trainer
        self._step = None  # one that an error ended belongs to the records before
        self._updates = trainer.global_step
        self._probe.open()

    def on_train_batch_start(self, *_state: Any) -> None:
        """Begin an optimizer's step, or go on with it."""
        if self._step is None:
            self._step = self._probe.step()
            self._step.__enter__()

    def on_train_batch_end(self, trainer: Any, *_state: Any) -> None:
        """End it once an optimizer has stepped."""
        if trainer.global_step != self._updates:
            self._updates = trainer.global_step
            self._leave()

    def on_validation_start(self, *_state: Any) -> None:
        """Leave a step between two batches that it accumulates; the next batch goes on with it."""
        self._leave()

    def _leave(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def on_train_end(self, trainer: Any, module: Any) -> None:  # noqa: ARG002
        """Write what is left."""
        self._probe.close()
        self._trainer = None

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Write what is left, and how the training ended."""
        self._probe.close(exception)

    def _log(self, figures: Mapping[str, float]) -> None:
        for logger in self._trainer.loggers:
            logger.log_metrics(figures, step=self._trainer.global_step)
