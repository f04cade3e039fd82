"""What runs a case on one rank, and how ranks try whether it fits."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from scaling.cases import Case
from scaling.largest import FAILED, FITS, OOM
from scaling.worker.control import Control
from scaling.worker.devices import Device
from scaling.worker.memory import Limit, is_out_of_memory


class Runner(Protocol):
    """One case at a time: what it needs is made by `use` and gone after `drop`."""

    fewest: tuple[int, ...]
    """Samples of a micro-step that only sets something up: the first number that the model can do with."""
    least: int
    """The one of them that `bare` had last."""

    def open(self, world_size: int) -> None:
        """Get ready for a world size, together with its ranks."""

    def bare(self, samples: int) -> None:
        """One step of so few, alone, before `open`: whether the model fits at all."""

    def settle(self, case: Case) -> None:
        """Together with the ranks: bring about what a step of the case finds in memory when it begins."""

    def use(self, case: Case) -> None:
        """Make this the case that runs."""

    def alone(self) -> None:
        """One step of the case that waits for no peer and takes as much memory as any."""

    def together(self) -> None:
        """One step as it is measured."""

    def run(self, arm: str, steps: int, lead_in: int) -> list[list[int]]:
        """Rows of records.STEP_FIELDS, or of begin and end, host times; `lead_in` steps go unrecorded."""

    def drop(self) -> None:
        """Let go of the case."""

    def close(self) -> None:
        """Let go of the world size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What all ranks together know of a step that each tried alone."""

    status: str
    rank: int | None = None
    error: str | None = None
    peak_bytes: int | None = None


class Jury:
    """Steps that ranks try by themselves and judge together, through the store: nobody waits in a collective."""

    def __init__(self, control: Control, device: Device, limit: Limit, *, rank: int) -> None:
        self._control = control
        self._device = device
        self._limit = limit
        self._rank = rank

    def bare(self, key: str, count: int, runner: Runner) -> Judged:
        """Whether the model fits, with as few samples as it can do with: batch normalisation fails on a single one."""
        *fewer, last = runner.fewest
        for samples in fewer:
            judged = self.judge(f"{key}/{samples}", count, functools.partial(runner.bare, samples))
            if judged.status != FAILED:
                return judged
        return self.judge(f"{key}/{last}", count, functools.partial(runner.bare, last))

    def judge(self, key: str, count: int, step: Callable[[], None]) -> Judged:
        """Whether `step` ran on each of `count` ranks, for one whose number is below it."""
        status, error, peak = self._own(step)
        if status != FITS:
            self._device.release_memory()
        own = [status, error, peak]
        return Judged(**self._control.judge(f"case/{key}", own, self._rank, count, _verdict))

    def _own(self, step: Callable[[], None]) -> tuple[str, str | None, int]:
        """The exception ends here: its frames hold what the step had allocated."""
        self._device.reset_peak()
        try:
            with self._limit.on():
                step()
                self._device.synchronize()
        except Exception as error:  # noqa: BLE001  # one case's failure is its result
            status = OOM if is_out_of_memory(error) else FAILED
            if status == FAILED:
                traceback.print_exc()
            said = [line[:300] for line in str(error).strip().splitlines()[:1]]
            return status, ": ".join([type(error).__name__, *said]), 0
        return FITS, None, self._device.peak_bytes()


def _verdict(all_of_them: list[list[Any]]) -> dict[str, Any]:
    for status in (FAILED, OOM):
        for rank, (own, error, _) in enumerate(all_of_them):
            if own == status:
                return {"status": status, "rank": rank, "error": error}
    return {"status": FITS, "peak_bytes": max(peak for _, _, peak in all_of_them)}
