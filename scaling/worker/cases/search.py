"""Search for the largest batch that fits, and prove it in fresh processes."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from scaling.records.files import add_line
from scaling.settings.cases import FAILED, FITS, LATE, OOM, Case, Largest, Try, VariantSearch
from scaling.worker.accelerator.memory import Limit
from scaling.worker.cases.runner import Judged, Jury, Runner
from scaling.worker.session.progress import COMPILE_S
from scaling.worker.session.session import LaunchSession

PROOF_STEPS = 3
PROVED = 3
"""What a batch takes with its proof, in times of a try, which has two steps."""


class Search:
    """All ranks of the largest world size try the same batches in the same order.

    Rank 0 records each batch before it is tried. If a process dies of it, the launch ends and the next launch knows
    why. RuntimeError, on every rank, where a batch fails for another reason than memory.
    """

    def __init__(self, session: LaunchSession, runner: Runner, limit: Limit, largest: Largest) -> None:
        self._session, self._runner, self._limit, self._largest = session, runner, limit, largest
        self._jury = Jury(session.control, session.device, limit, rank=session.rank)
        self._end_s = time.monotonic() + session.spec.measure.budget_s

    def run(self, *, prove: bool) -> None:
        """Search every variant, or run the candidate of each."""
        work = [(i, f) for i, f in enumerate(self._largest.items) if (f.candidate if prove else f.next)]
        if not work:
            return
        self._session.stage = "the search for the largest batch"
        index, search = work[0]
        least = search.candidate if prove else search.variant.accumulation_steps
        self._note(index, least, "trying")  # reported as failing where the model itself does not fit
        if not self._opened():
            self._note(index, search.variant.accumulation_steps, OOM)
            return
        for index, search in work:
            if prove:
                self._try(index, search, search.candidate, PROOF_STEPS)
            else:
                self._search(index, search)

    def _opened(self) -> bool:
        """Whether the model fits at all."""
        judged = self._jury.bare("bare", self._session.world, self._runner)
        if judged.status == FAILED:
            raise RuntimeError(f"{judged.error} (rank {judged.rank})")
        if judged.status != FITS:
            return False
        self._session.progress("setting the search up")
        with self._limit.on():
            self._runner.open(self._session.world)
        self._limit.begin()
        return True

    def _search(self, index: int, search: VariantSearch) -> None:
        a_sample_s = 0.0
        while (batch := search.next) is not None:
            late = self._late(index, batch, a_sample_s)
            if late or batch < self._runner.least * search.variant.accumulation_steps:  # it is known to fail
                tried = Try(batch=batch, status=LATE if late else FAILED)
                self._note(index, batch, tried.status)
            else:
                begin = time.monotonic()
                judged = self._try(index, search, batch, 1)
                a_sample_s = (time.monotonic() - begin) / batch
                tried = Try(batch=batch, status=judged.status, rank=judged.rank, peak_bytes=judged.peak_bytes)
            search = dataclasses.replace(search, tries=(*search.tries, tried))

    def _late(self, index: int, batch: int, a_sample_s: float) -> bool:
        """Whether there is no time for a batch and for its proof; rank 0 decides for all. The first is always tried."""
        over = a_sample_s > 0 and time.monotonic() + PROVED * batch * a_sample_s > self._end_s
        return bool(self._session.control.agree(f"late/{index}/{batch}", over))

    def _try(self, index: int, search: VariantSearch, batch: int, steps: int) -> Judged:
        """Try a batch alone first, so that no rank waits for one that ran out of memory, and then together."""
        self._note(index, batch, "trying")
        case = Case(variant=search.variant, batch=batch)
        self._runner.settle(case)

        def alone() -> None:
            self._runner.use(case)
            self._runner.alone()

        judged = self._jury.judge(f"{index}/{batch}", self._session.world, alone)
        if judged.status == FAILED:
            raise RuntimeError(f"batch {batch}: {judged.error} (rank {judged.rank})")
        if judged.status == FITS:
            with self._limit.on():
                for _ in range(steps):
                    self._runner.together()
        self._runner.drop()
        self._session.device.release_memory()
        self._note(index, batch, judged.status, rank=judged.rank, peak_bytes=judged.peak_bytes)
        return judged

    def _note(self, index: int, batch: int, status: str, **more: Any) -> None:
        if not self._session.lead:
            return
        add_line(self._session.folder.tries, {"variant": index, "batch": batch, "status": status, **more})
        compiled = self._largest.items[index].variant.compile
        self._session.progress(f"batch {batch} {status}", expected_s=COMPILE_S if compiled else None)
