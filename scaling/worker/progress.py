"""Rank 0's word on how far a launch is, and how long the launcher is to wait for the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaling.files import write_json
from scaling.spec import Measure

LATE = 4
"""What takes so many times longer than expected is late, and after `step_timeout_s` more hung."""
COMPILE_S = 150.0
"""What compiling a module may well take: it is late after ten minutes, as when a model is tried (scaling/tryout.py)."""


class Progress:
    """progress.json of a launch, by rank 0 alone. The launcher listens for a word that is new.

    Nothing is written while steps are timed.
    """

    def __init__(self, path: Path, measure: Measure, *, rank: int) -> None:
        self._path, self._lead = path, rank == 0
        self._timeout_s = measure.step_timeout_s

    def __call__(
        self,
        stage: str,
        rounds: float = 0.0,
        elapsed_s: float = 0.0,
        left_s: float | None = None,
        expected_s: float | None = None,
    ) -> None:
        """`expected_s`: about how long it is until the next word; None: the launcher waits as long as usual."""
        if not self._lead:
            return
        word: dict[str, Any] = {
            "stage": stage,
            "rounds": rounds,
            "elapsed_s": round(elapsed_s, 1),
            "left_s": left_s,
        }
        if expected_s is not None:
            word["patience_s"] = round(self._timeout_s + LATE * expected_s, 1)
        write_json(self._path, word, indent=None)
