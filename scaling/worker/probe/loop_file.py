"""One rank's records of a user's loop. The head with the plan is written once the loop has run a few steps."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scaling.records import codec
from scaling.records.format import ClockRecord, EndRecord, PauseRecord, RecordedBlock
from scaling.worker.measure.recorder import Recorder
from scaling.worker.probe.agreement import Agreement
from scaling.worker.probe.clocks import FIRST_SLOT, Clocks
from scaling.worker.probe.facts import describe_loop
from scaling.worker.probe.followed import Followed
from scaling.worker.probe.step_marks import StepMarks
from scaling.worker.session.session import Session, cores_of_host

FLUSH_S = 5.0


class LoopFile:
    """The rank file of an own loop. It exists from the first whole block on."""

    def __init__(
        self,
        followed: Followed,
        session: Session,
        agreement: Agreement,
        clocks: Clocks,
        phases: StepMarks,
        *,
        batch: int | None,
        name: str | None = None,
    ) -> None:
        """`batch`: samples per rank and step; None: the most frequent number in the first steps (`sample`).

        `name`: what reports call the model; None: its class.
        """
        self._name = name
        self._followed, self._session, self._agreement = followed, session, agreement
        self._clocks, self._phases, self._batch = clocks, phases, batch
        self._samples: Counter[int] = Counter()
        self._recorder: Recorder | None = None
        self._early: list[ClockRecord] = []
        """Comparisons of clocks from before the file existed."""

    @property
    def begun(self) -> bool:
        """Whether there is a file yet."""
        return self._recorder is not None

    def sample(self, count: int) -> None:
        """Count a step's samples, while the usual number is unknown."""
        self._samples[count] += 1

    def block(self, recorded: RecordedBlock) -> None:
        """Record a whole block of the loop; before the first one, the file's head."""
        recorder = self._recorder or self._begin(recorded.block.accumulation)
        batch = self._batch or 0
        block = dataclasses.replace(recorded.block, world_size=self._session.world, batch=batch)
        recorder.block(dataclasses.replace(recorded, block=block))

    def look(self, slot: int) -> None:
        """Between two rounds: compare clocks, if ranks run on several kernels and it is time.

        Every rank decides by the slot's number alone, since one without a file has to take part too.
        """
        self._clocks.look(slot, self._note)

    def pause(self, *, time_ns: int, gap_ns: int) -> None:
        """Record that the loop did something else since the last step."""
        if self._recorder is not None:
            self._recorder.note(PauseRecord(time_ns=time_ns, gap_ns=gap_ns))

    def end(self, error: BaseException | None, steps: int) -> None:
        """Record how the loop ended; `error` is the exception that ended it, if any."""
        if self._recorder is None:
            return
        if error is None:
            error = getattr(sys, "last_value", None)  # when called at the process' exit
        fine = error is None or (isinstance(error, SystemExit) and not error.code)
        text = "" if fine else f"{type(error).__name__}: {error}".strip().splitlines()[0]
        state, blocks = "done" if fine else "failed", self._recorder.blocks
        self._recorder.note(EndRecord(state=state, steps=steps, error=text, blocks=blocks))

    def where(self, steps: int, folder: Path | None) -> str:
        """Where the run is and how to read it, after the last step; or why there is none."""
        if self._recorder is None:
            return f"nothing was recorded: the loop ended after {steps} steps, before the first round of ten was whole"
        place = folder
        with contextlib.suppress(OSError, ValueError):  # it is elsewhere, or the working directory is gone
            place = folder and folder.relative_to(Path.cwd())
        return f"`scaling analyze {place}` reports the run"

    def forget(self) -> None:
        """Write nothing more."""
        self._recorder = None

    def close(self) -> None:
        """Flush what the disk has room for, and close."""
        if self._recorder is not None:
            with contextlib.suppress(OSError):
                self._recorder.close()

    def _begin(self, accumulation: int) -> Recorder:
        """Write what is known of the loop only after a few steps."""
        self._phases.looking = False
        if self._batch is None:
            self._batch = self._samples.most_common(1)[0][0] if self._samples else 0
        plan = describe_loop(
            self._followed,
            self._agreement,
            batch=self._batch,
            accumulation=accumulation,
            precision=self._phases.precision,
            name=self._name,
        )
        session = self._session
        apart = {} if self._followed.sends_buffers else {"buffers_bytes": 0}
        session.record_environment(plan.spec, self._followed.module, **apart)
        groups: dict[int, Sequence[int]] = {session.world: range(session.world), 1: [session.rank]}
        groups |= self._followed.groups()
        head = session.head(
            groups, plan=codec.encode(plan), cores=cores_of_host(), buckets=self._followed.sizes()
        )
        self._recorder = Recorder(session.folder.rank(session.rank), head, flush_s=FLUSH_S)
        for record in self._early:
            self._recorder.note(record)
        self._clocks.look(FIRST_SLOT, self._note)  # for a loop that ends within its first round
        return self._recorder

    def _note(self, record: ClockRecord) -> None:
        """Write a record, or keep it until there is a file."""
        if self._recorder is None:
            self._early.append(record)
        else:
            self._recorder.note(record)
