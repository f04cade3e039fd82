"""The interface that runs a case on one rank, and how ranks try whether a case fits into memory."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from scaling.records.format import AnyStepRow
from scaling.spec.batch_search import FAILED, FITS, OOM
from scaling.spec.cases import Case
from scaling.spec.ended import Ended
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.memory import Limit, is_out_of_memory
from scaling.worker.session.control import Control


class Runner(Protocol):
    """Runs one case at a time. `use` makes what the case needs and `drop` releases it."""

    fewest: tuple[int, ...]
    """Batch sizes to try for steps that only set something up; the first that the model accepts is used."""
    least: int
    """The one of them that `bare` tried last."""

    def open(self, world_size: int) -> None:
        """Prepare for a world size, together with its ranks."""

    def bare(self, samples: int) -> None:
        """Run one step of so many samples, alone, before `open`, to see whether the model fits at all."""

    def settle(self, case: Case) -> None:
        """Together with the ranks: allocate what a step of the case finds in memory when it begins."""

    def use(self, case: Case) -> None:
        """Switch to this case."""

    def alone(self) -> None:
        """Run one step that waits for no peer and takes as much memory as any step of the case."""

    def together(self) -> None:
        """Run one step as it is measured."""

    def run(self, arm: str, steps: int, lead_in: int) -> list[AnyStepRow]:
        """Run steps of an arm and return their rows, after `lead_in` steps that are not recorded."""

    def drop(self) -> None:
        """Release the case."""

    def close(self) -> None:
        """Release the world size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Ended):
    """The outcome, over all ranks, of a step that each tried alone."""

    peak_bytes: int | None = None


class Jury:
    """Lets each rank try a step alone and combines the outcomes through the store, so no rank waits in a collective."""

    def __init__(self, control: Control, device: Accelerator, limit: Limit, *, rank: int) -> None:
        self._control = control
        self._device = device
        self._limit = limit
        self._rank = rank

    def bare(self, key: str, count: int, runner: Runner) -> Judged:
        """Whether the model fits with the fewest samples it accepts; batch normalisation fails on a single one."""
        *fewer, last = runner.fewest
        for samples in fewer:
            judged = self.judge(f"{key}/{samples}", count, functools.partial(runner.bare, samples))
            if judged.status != FAILED:
                return judged
        return self.judge(f"{key}/{last}", count, functools.partial(runner.bare, last))

    def judge(self, key: str, count: int, step: Callable[[], None]) -> Judged:
        """Whether `step` ran on each of the ranks below `count`; this rank is one of them."""
        status, error, peak = self._own(step)
        if status != FITS:
            self._device.release_memory()
        own = [status, error, peak]
        return Judged(**self._control.judge(f"case/{key}", own, self._rank, count, _verdict))

    def _own(self, step: Callable[[], None]) -> tuple[str, str | None, int]:
        """Try the step. The exception is dropped here, since its frames keep alive what the step had allocated."""
        self._device.reset_peak()
        try:
            with self._limit.on():
                step()
                self._device.synchronize()
        except Exception as error:  # noqa: BLE001  # a failure is the result of the case
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
