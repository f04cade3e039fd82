"""From the user's `with probe.step():` to the steps of a track: which calls are one step, and what lies between two."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from scaling.records.format import RecordedBlock
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.probe.gaps import Gaps
from scaling.worker.probe.live import Live
from scaling.worker.probe.loop_file import LoopFile
from scaling.worker.probe.step_marks import StepMarks
from scaling.worker.probe.tokens import as_count
from scaling.worker.probe.track import Track

ASTRAY = 8
"""The probe says so after this many forwards with gradients outside of any step."""


class Steps:
    """Follows the calls of step()."""

    def __init__(
        self,
        phases: StepMarks,
        track: Track,
        file: LoopFile,
        *,
        live: Live | None,
        say: Callable[[str], None],
    ) -> None:
        """`live`: prints a line about the last steps; None: nothing is printed."""
        self._phases, self._track, self._file, self._live = phases, track, file, live
        self._say = say
        self._depth, self._left_ns = 0, 0
        self._gaps = Gaps()
        self.aside = False
        """Whether the loop's step is run for a baseline now, whose tokens nobody asks for."""
        track.between = self._between

    @property
    def inside(self) -> bool:
        """Whether the loop is in a step now."""
        return self._depth > 0

    def record(self, recorded: RecordedBlock) -> None:
        """Write a whole block."""
        self._file.block(recorded)
        if self._live is not None:
            self._live.add(recorded.steps)

    def enter(self) -> None:
        """Begin a step, or go on with one that has run only micro-steps so far."""
        self._depth += 1
        if self._depth > 1:
            self._say("step() inside step(): the inner one is left out; a step is one optimizer step")
            return
        if self._phases.unfinished:
            self._phases.inside = True
            return
        self._track.begin(paused=self._paused())

    def leave(self, *, failed: bool) -> None:
        """End the step, unless it has only run micro-steps."""
        self._depth -= 1
        if self._depth:
            return
        phases = self._phases
        phases.inside = False
        if failed or not phases.unfinished:
            if phases.looking:
                self._file.sample(phases.samples)
            self._track.end(failed=failed)
        self._left_ns = now_ns()

    def tokens(self, given: Any) -> None:
        """So many tokens more in the step that runs; what is no such number is said once and left out."""
        if self.aside:
            return
        if not self.inside:
            self._say("tokens() is called inside step(); what is told outside of it is left out")
            return
        try:
            self._phases.add_tokens(as_count(given))
        except ValueError as error:
            self._say(f"tokens() is left out: {error}")

    def _paused(self) -> bool:
        """Whether the loop did something else since the last step: another forward, or a far longer gap than usual."""
        if not self._left_ns:
            return False
        phases, now = self._phases, now_ns()
        if phases.astray >= ASTRAY:
            self._say(
                "the model trains outside of step(): put `with probe.step():` around every training step"
            )
        gap = now - self._left_ns
        paused = self._gaps.is_pause(gap, elsewhere=phases.elsewhere > 0)
        if paused:
            self._file.pause(time_ns=now, gap_ns=gap)
        return paused

    def _between(self, slot: int) -> None:
        """Compare clocks and report, between two rounds."""
        self._file.look(slot)
        if self._live is not None:
            self._live.say(self._track.steps)
        if unseen := self._track.unseen():
            self._say(unseen)


class StepContext:
    """What step() returns each time, so that entering a step makes no object. `failed` is told what fails in it."""

    def __init__(
        self,
        enter: Callable[[], None],
        leave: Callable[[bool], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._enter, self._leave, self._failed = enter, leave, failed

    def __enter__(self) -> None:
        try:
            self._enter()
        except Exception as error:  # noqa: BLE001  # the training does not depend on it
            self._failed(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(kind is not None)
        except Exception as failure:  # noqa: BLE001  # the training does not depend on it
            self._failed(failure)
