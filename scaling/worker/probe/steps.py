"""From the user's `with probe.step():` to the steps of a track: which calls are one step, and what lies between two."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from scaling.plain import one_line
from scaling.records.format import RecordedBlock
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.guard import Unseen
from scaling.worker.probe.live import Live, Logged
from scaling.worker.probe.loop_file import LoopFile
from scaling.worker.probe.pauses import Pauses
from scaling.worker.probe.phases import Phases
from scaling.worker.probe.track import Track

NAME_MAX = 200
"""Characters of a name in reports: of a model, a pause or a phase."""
MOST = 2**48
"""A rank's step has fewer; a larger number is a mistake, and might not fit into the records."""


def as_count(given: Any) -> int:
    """A number of tokens. ValueError with the reason where it is none; never waits for a device."""
    if isinstance(given, torch.Tensor) and given.device.type != "cpu":
        raise ValueError(
            f"the number is on {given.device}, and the host would wait for it; count before the batch goes there"
        )
    try:
        count = operator.index(given)
    except TypeError:
        raise ValueError(f"a whole number is expected, not {type(given).__name__}") from None
    if not 0 <= count < MOST:
        raise ValueError(f"a number from 0 to 2^48 is expected, not {count}")
    return count


ASTRAY = 8
"""The probe says so after this many forwards with gradients outside of any step."""


class Steps:
    """Follows the calls of step()."""

    def __init__(
        self,
        phases: Phases,
        track: Track,
        file: LoopFile,
        *,
        pauses: Pauses,
        live: Live | None,
        logged: Logged | None = None,
        say: Callable[[str], None],
    ) -> None:
        """`live`: prints a line about the last steps. `logged`: gives figures of them to a log."""
        self._logged = logged
        self._phases, self._track, self._file, self._live = phases, track, file, live
        self._say = say
        self._depth = 0
        self.pauses = pauses
        self.aside = False
        """Whether the loop's step is run for a baseline now, whose tokens nobody asks for."""
        track.between = self._between

    @property
    def inside(self) -> bool:
        """Whether the loop is in a step now."""
        return self._depth > 0

    def record(self, recorded: RecordedBlock) -> None:
        """Write a whole block."""
        self._file.steps = self._track.steps
        self._file.block(recorded)
        if self._live is not None:
            self._live.add(recorded.steps)
        if self._logged is not None:
            self._logged.add(recorded)

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
            self.pauses.end(self._track.steps, now_ns())
            self._track.end(failed=failed)
            self.pauses.since(now_ns())

    def tokens(self, given: Any, squared: Any = 0) -> None:
        """So many tokens more in the step that runs; what is no such number is said once and left out."""
        if self.aside:
            return
        if not self.inside:
            self._say("tokens() is called inside step(); what is told outside of it is left out")
            return
        try:
            self._phases.add_tokens(as_count(given), as_count(squared))
        except ValueError as error:
            self._say(f"tokens() is left out: {error}")

    def enter_phase(self, name: Any) -> None:
        """Begin a named phase of the step that runs. What cannot be one is said once and left out."""
        text = one_line(name)[:NAME_MAX] if isinstance(name, str) else ""
        why = "" if self.aside else self._phases.enter_named(text)
        if why:
            self._say(f"phase() is left out: {why}")

    def leave_phase(self) -> None:
        """Leave it."""
        self._phases.leave_named()

    def _paused(self) -> bool:
        """Whether the loop did something else since the last step: another forward, or a far longer gap than usual."""
        phases = self._phases
        if phases.astray >= ASTRAY and self._track.steps:
            self._say(
                "the model trains outside of step(): put `with probe.step():` around every training step"
            )
        return self.pauses.begin(elsewhere=phases.elsewhere > 0)

    def _between(self, slot: int) -> None:
        """Compare clocks and report, between two rounds."""
        self._file.look(slot)
        if self._live is not None:
            self._live.say(self._track.steps)
        if self._logged is not None:
            self._logged.between(slot, self._track.steps)
        if unseen := self._track.unseen():
            self._say(unseen)


class StepContext:
    """What step() returns each time, so that entering it makes no object; and phase(). `failed` is told of errors."""

    def __init__(
        self,
        enter: Callable[[], None],
        leave: Callable[[bool], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._enter, self._leave, self._failed = enter, leave, failed

    def __reduce__(self) -> tuple[Any, ...]:
        return contextlib.nullcontext, ()

    def __enter__(self) -> None:
        try:
            with Unseen():
                self._enter()
        except Exception as error:  # noqa: BLE001  # the training does not depend on it
            self._failed(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with Unseen():
                self._leave(kind is not None)
        except Exception as failure:  # noqa: BLE001  # the training does not depend on it
            self._failed(failure)
