"""Rank 0 writes the launch's progress, and what the launcher's patience depends on (launchers/failure/patience.py)."""

from __future__ import annotations

from pathlib import Path

from scaling.records.files import write_json
from scaling.worker.session.beat import beat

COMPILE_S = 150.0
"""Time that compiling a module may take. It is late after ten minutes, as when a model is tried."""


class Progress:
    """Writes progress.json, on rank 0 only; on every rank it is a beat. The launcher watches both for changes.

    Nothing is written while steps are timed.
    """

    def __init__(self, path: Path, *, rank: int) -> None:
        self._path, self._lead = path, rank == 0
        self.step_s: float | None = None
        """A step, as it was timed; None: what runs now has not been timed yet."""

    def __call__(
        self,
        stage: str,
        rounds: float = 0.0,
        elapsed_s: float = 0.0,
        left_s: float | None = None,
        expected_s: float | None = None,
    ) -> None:
        """`expected_s`: about how long until the next update; None: not known."""
        beat()
        if not self._lead:
            return
        write_json(
            self._path,
            {
                "stage": stage,
                "rounds": rounds,
                "elapsed_s": round(elapsed_s, 1),
                "left_s": left_s,
                "step_s": self.step_s,
                "expected_s": expected_s,
            },
            indent=None,
        )
