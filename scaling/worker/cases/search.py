"""The search for the largest batch on one rank, and its proof in fresh processes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from scaling.cases import Case
from scaling.largest import FAILED, FITS, OOM, Found, Largest, Try
from scaling.worker.cases.runner import Judged, Jury, Runner
from scaling.worker.launch import Launch
from scaling.worker.memory import Limit
from scaling.worker.progress import COMPILE_S

PROOF_STEPS = 3


class Search:
    """All ranks of the largest world size try the same batches in the same order.

    Before each, rank 0 writes down which: where a process dies of it, the launch ends, and the
    next one knows. RuntimeError, on every rank, where a batch fails for something other than memory.
    """

    def __init__(self, launch: Launch, runner: Runner, limit: Limit, largest: Largest) -> None:
        self._launch = launch
        self._runner = runner
        self._limit = limit
        self._largest = largest
        self._jury = Jury(launch.control, launch.device, limit, rank=launch.rank)

    def run(self, *, prove: bool) -> None:
        """Search each variant to its end, or run its candidate."""
        work = [(i, f) for i, f in enumerate(self._largest.items) if (f.candidate if prove else f.next)]
        if not work:
            return
        self._launch.stage = "the search for the largest batch"
        self._note(work[0][0], self._first(work[0][1], prove=prove), "trying")
        if not self._opened():
            self._note(work[0][0], work[0][1].variant.accumulation_steps, OOM)
            return
        for index, found in work:
            if prove:
                self._try(index, found, found.candidate, PROOF_STEPS)
            else:
                self._search(index, found)

    def _first(self, found: Found, *, prove: bool) -> int:
        """What fails when the model itself does not fit."""
        return found.candidate if prove else found.variant.accumulation_steps

    def _opened(self) -> bool:
        """Whether the model fits at all."""
        judged = self._jury.bare("bare", self._launch.world, self._runner)
        if judged.status == FAILED:
            raise RuntimeError(f"{judged.error} (rank {judged.rank})")
        if judged.status != FITS:
            return False
        self._launch.progress("setting the search up")
        with self._limit.on():
            self._runner.open(self._launch.world)
        self._limit.begin()
        return True

    def _search(self, index: int, found: Found) -> None:
        while (batch := found.next) is not None:
            if batch < self._runner.least * found.variant.accumulation_steps:  # that it fails is known
                tried = Try(batch=batch, status=FAILED)
                self._note(index, batch, FAILED)
            else:
                judged = self._try(index, found, batch, 1)
                tried = Try(batch=batch, status=judged.status, rank=judged.rank, peak_bytes=judged.peak_bytes)
            found = dataclasses.replace(found, tries=(*found.tries, tried))

    def _try(self, index: int, found: Found, batch: int, steps: int) -> Judged:
        """Alone first, so that nobody waits for a rank that ran out; then together."""
        self._note(index, batch, "trying")
        case = Case(variant=found.variant, batch=batch)
        self._runner.settle(case)

        def alone() -> None:
            self._runner.use(case)
            self._runner.alone()

        judged = self._jury.judge(f"{index}/{batch}", self._launch.world, alone)
        if judged.status == FAILED:
            raise RuntimeError(f"batch {batch}: {judged.error} (rank {judged.rank})")
        if judged.status == FITS:
            with self._limit.on():
                for _ in range(steps):
                    self._runner.together()
        self._runner.drop()
        self._launch.device.release_memory()
        self._note(index, batch, judged.status, rank=judged.rank, peak_bytes=judged.peak_bytes)
        return judged

    def _note(self, index: int, batch: int, status: str, **more: Any) -> None:
        if self._launch.rank != 0:
            return
        line = json.dumps({"variant": index, "batch": batch, "status": status, **more})
        with self._launch.folder.tries.open("a", encoding="ascii") as file:
            file.write(line + "\n")
        compiled = self._largest.items[index].variant.compile
        self._launch.progress(f"batch {batch} {status}", expected_s=COMPILE_S if compiled else None)
