"""From the user's `with probe.step():` to the steps of a track: which calls are one step, and what lies between two.

How many tokens a rank's step has, as the loop tells it.

Print one line about the last steps on rank 0's standard error every few seconds.
"""

from __future__ import annotations

import contextlib
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from scaling.records.format import AnyStepRow, RecordedBlock, StepRow
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.guard import Unseen, tell
from scaling.worker.probe.loop_file import LoopFile
from scaling.worker.probe.pauses import Pauses
from scaling.worker.probe.phases import Phases
from scaling.worker.probe.track import Track

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


EVERY_S = 10.0


class Live:
    """Collects steps with phase stamps until a line is due."""

    def __init__(self) -> None:
        self._due = time.monotonic() + EVERY_S
        self._steps: list[StepRow] = []

    def add(self, steps: Sequence[AnyStepRow]) -> None:
        """Add steps; those without phases are skipped."""
        self._steps += [step for step in steps if isinstance(step, StepRow)]

    def say(self, number: int) -> None:
        """Print the line if it is due. `number`: steps so far."""
        if time.monotonic() < self._due or not self._steps:
            return
        tell(summary(number, self._steps))
        self._due = time.monotonic() + EVERY_S
        self._steps = []


def summary(number: int, steps: Sequence[StepRow]) -> str:
    """`scaling: step 1200: 98.1 ms on rank 0; input 1%, forward 20%, ...`, from steps of rank 0."""
    whole = sum(step.end_ns - step.begin_ns for step in steps)
    each = [parts_of(step) for step in steps]
    text = ", ".join(f"{name} {sum(parts[name] for parts in each) / whole:.0%}" for name in each[0])
    return f"scaling: step {number}: {whole / len(steps) / 1e6:.1f} ms on rank 0; {text}"


def parts_of(step: StepRow) -> dict[str, int]:
    """What a step spends its time on, ns: its phases without their waits, all waits, and the rest of the host's."""
    behind = step.sync_end_ns - step.compute_end_ns + step.earlier_wait_ns
    waited = {
        "input": step.input_wait_ns,
        "forward": step.forward_wait_ns + step.buffer_wait_ns,
        "backward": step.backward_wait_ns + behind,
        "optimizer": step.optimizer_wait_ns,
    }
    parts = {phase: getattr(step, f"{phase}_ns") - ns for phase, ns in waited.items()}
    parts["communication"] = sum(waited.values()) + step.host_wait_ns
    return parts | {"host": step.end_ns - step.begin_ns - sum(parts.values())}


Log = Any
"""Takes figures by name, as `wandb.log` does, or has `add_scalar`, as a SummaryWriter has."""
ROUNDS = 4
"""Rounds of steps between two logs."""
LATE = 0.03
"""A rank is called late in a log if it takes longer than the median of all by more than this share of the step."""


class Logged:
    """Gives `log` the figures of the last steps, on rank 0. Other ranks tell theirs over the store; nobody waits."""

    def __init__(self, log: Log, store: Any, rank: int, world: int) -> None:
        self._log, self._store, self._rank, self._world = log, store, rank, world
        self._steps: list[StepRow] = []
        self._told: list[tuple[int, dict[str, float]]] = []
        """The slot of figures that rank 0 has yet to log, and they."""

    def add(self, recorded: RecordedBlock) -> None:
        """Add the steps of a block without details."""
        if not recorded.block.detailed:
            self._steps += [step for step in recorded.steps if isinstance(step, StepRow)]

    def between(self, slot: int, number: int) -> None:
        """Tell and log between two rounds. `number`: steps so far."""
        if slot % ROUNDS or not self._steps:
            return
        steps, self._steps = self._steps, []
        step_ms = _mean_ms(steps, lambda s: s.end_ns - s.begin_ns)
        exposed_ms = _mean_ms(steps, lambda s: parts_of(s)["communication"])
        self._store.set(_key(slot, self._rank), str(step_ms - exposed_ms))
        if self._rank:
            return
        for earlier, figures in self._told:
            self._write(figures | self._lateness(earlier, figures["scaling/step_ms"]), number)
        figures = {"scaling/step_ms": step_ms, "scaling/exposed_ms": exposed_ms}
        figures["scaling/input_ms"] = _mean_ms(steps, lambda s: parts_of(s)["input"])
        tokens = sum(s.tokens for s in steps)
        if all(s.tokens >= 0 for s in steps):
            figures["scaling/tokens_per_s"] = self._world * tokens / (len(steps) * step_ms) * 1e3
        self._told = [(slot, figures)]

    def _lateness(self, slot: int, step_ms: float) -> dict[str, float]:
        """The late rank, or -1, and by how much; nothing where a rank has not told its time yet."""
        keys = [_key(slot, rank) for rank in range(self._world)]
        if self._world < 2 or not self._store.check(keys):
            return {}
        computed = [float(self._store.get(key)) for key in keys]
        for key in keys:
            self._store.delete_key(key)
        late_ms = max(computed) - statistics.median_low(computed)
        late = late_ms > LATE * step_ms
        return {
            "scaling/late_rank": computed.index(max(computed)) if late else -1,
            "scaling/late_ms": late_ms if late else 0.0,
        }

    def _write(self, figures: dict[str, float], number: int) -> None:
        if hasattr(self._log, "add_scalar"):
            for name, value in figures.items():
                self._log.add_scalar(name, value, number)
        else:
            self._log(figures)


def _key(slot: int, rank: int) -> str:
    return f"logged/{slot}/{rank}"


def _mean_ms(steps: Sequence[StepRow], value: Callable[[StepRow], int]) -> float:
    return sum(map(value, steps)) / len(steps) / 1e6


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
    """What step() returns each time, so that entering a step makes no object. `failed` is told what fails in it."""

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
