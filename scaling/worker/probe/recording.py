"""What an open Probe has: from the ranks' agreement on a folder to the last line of their records.

A running loop tells of its last steps on rank 0: a line on standard error now and then, and figures in a log.
"""

from __future__ import annotations

import contextlib
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import ScalingError, let_go, raise_from_signal
from scaling.plain import one_line
from scaling.records.format import BASELINE, RecordedBlock, StepRow
from scaling.settings.topology import CPU
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.accelerator.devices import device_of
from scaling.worker.parallel.guard import Guard, tell, words
from scaling.worker.parallel.streams import find
from scaling.worker.parallel.tap import HOST_BACKENDS
from scaling.worker.probe.agreement import Agreement, Clocks, patience
from scaling.worker.probe.baseline import Baseline, SharedStepError, Step, why_not
from scaling.worker.probe.follow import follow, stages_of
from scaling.worker.probe.loop_file import LoopFile
from scaling.worker.probe.pauses import Pauses, retries_of
from scaling.worker.probe.phases import Phases
from scaling.worker.probe.track import Track
from scaling.worker.session.control import Aborted, Control
from scaling.worker.session.progress import sampling
from scaling.worker.session.session import Session

NAME_MAX = 200
"""Characters of a name in reports: of a model, a pause or a phase."""
MOST = 2**48
"""A rank's step has fewer; a larger number is a mistake, and might not fit into the records."""
ASTRAY = 8
"""The probe says so after this many forwards with gradients outside of any step."""
PATIENCE = timedelta(seconds=300)
"""Longest time that a rank waits for another in a baseline. Compiling, or a few steps of one rank alone, may take
minutes. Peers that went on training instead wait in their next collective meanwhile (agreement.patience)."""
Log = Any
"""Takes figures by name, as `wandb.log` does, or has `add_scalar`, as a SummaryWriter has."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a Probe was asked for; its docstring has each."""

    run_dir: Path | None
    name: str | None
    batch: int | None
    live: bool
    log: Log | None


class Recording:
    """The records of one model's training on this rank."""

    _session: Session
    _baseline: Baseline | None = None
    _depth = 0
    """0: the loop is in no step."""
    _aside = False
    """Whether the loop's step is run for a baseline now, whose tokens nobody asks for."""

    def __init__(
        self,
        model: Any,
        beside: Sequence[torch.nn.Module],
        *,
        say: Callable[[str], None],
        failed: Callable[[Exception], None],
        undo: list[Callable[[], Any]],
    ) -> None:
        """`model`: what the loop calls; `beside`: others that it trains. `say` prints a line, once, on rank 0.

        `failed` takes an error of a hook. `undo` gets what takes back all that `begin` does, in order.
        """
        self._model, self._beside = model, beside
        self._say, self._failed, self._undo = say, failed, undo

    def begin(self, options: Options) -> None:
        """Agree with the other ranks and begin to record. ScalingError where the model is not followed."""
        followed = self._followed = follow(self._model)
        devices = followed.devices
        if len(devices) != 1:
            several = "it spans several devices, each with a clock of its own"
            raise ScalingError(f"the model is not followed: {several if devices else 'it has no parameters'}")
        agreement = self._agreement = Agreement(followed.members, patience(followed.communicators()))
        folder = agreement.folder(options.run_dir)
        clocks = Clocks(agreement)
        self.run_dir = folder.path.parent.parent
        device = self._device = device_of(next(followed.root.parameters()))
        agreement.judge("here", 1, len)  # nobody is missing in what follows
        find(followed.communicators(), device)
        patience_s = patience(followed.communicators(), PATIENCE).total_seconds()
        self._session = Session(
            rank=agreement.rank,
            world=agreement.world,
            host=agreement.host,
            folder=folder,
            device=device,
            control=Control(agreement.store, agreement.rank, patience_s=patience_s, waiting=device.waiting),
        )
        sampled = contextlib.ExitStack()
        first = device.type != CPU and agreement.hosts.index(agreement.host) == agreement.rank
        with let_go(OSError, ValueError):  # then nothing is sampled
            sampled.enter_context(sampling(folder, agreement.host, first_on_host=first, own_loop=True))
        self._undo.append(sampled.close)
        before, Guard.told = Guard.told, self._failed
        self._undo.append(lambda: setattr(Guard, "told", before))
        called, *more = stages_of(self._model) or [self._model]
        phases = self.phases = Phases(followed, called, (*more, *self._beside), device.clock.stamp)
        self._undo.append(phases.close)
        self._track = Track(phases, lambda: followed.detail(device), device, self.record, self._withheld)
        self._track.between = self._between
        self._undo.append(self._track.drop)
        self._file = LoopFile(
            followed, self._session, agreement, clocks, phases, batch=options.batch, name=options.name
        )
        self._undo.append(self._file.close)
        pauses = self.pauses = Pauses(self._file.waiting.append, retries_of(device.torch_device))
        self._undo.append(lambda: pauses.close(self._track.steps))
        self._told: list[Live | Logged] = [Live()] if options.live and not agreement.rank else []
        if options.log is not None:
            self._told.append(Logged(options.log, agreement.store, agreement.rank, agreement.world))

    def enter(self) -> None:
        """Begin a step, or go on with one that has run only micro-steps so far."""
        self._depth += 1
        if self._depth > 1:
            self._say("step() inside step(): the inner one is left out; a step is one optimizer step")
        elif self.phases.unfinished:
            if self.pauses.resume(elsewhere=self.phases.elsewhere > 0):
                self._track.leave()
            self.phases.resume(marking=self._track.marking)
        else:
            self._track.begin(paused=self._paused())

    def leave(self, *, failed: bool) -> None:
        """End the step, unless it has only run micro-steps."""
        if not self._depth:  # it was entered before this recording began
            return
        self._depth -= 1
        if self._depth:
            return
        phases = self.phases
        phases.inside = False
        if phases.unfinished and not failed:
            self.pauses.leave()
        else:
            if phases.looking:
                self._file.samples[phases.samples] += 1
            self.pauses.end(self._track.steps, now_ns())
            self._track.end(failed=failed)
            self.pauses.since(now_ns())

    def tokens(self, given: Any, squared: Any = 0) -> None:
        """So many tokens more in the step that runs; what is no such number is said once and left out."""
        if self._aside:
            return
        if not self._depth:
            self._say("tokens() is called inside step(); what is told outside of it is left out")
            return
        try:
            self.phases.add_tokens(as_count(given), as_count(squared))
        except ValueError as error:
            self._say(f"tokens() is left out: {error}")

    def enter_phase(self, name: Any) -> None:
        """Begin a named phase of the step that runs. What cannot be one is said once and left out."""
        text = one_line(name)[:NAME_MAX] if isinstance(name, str) else ""
        why = "" if self._aside else self.phases.enter_named(text)
        if why:
            self._say(f"phase() is left out: {why}")

    def _paused(self) -> bool:
        """Whether the loop did something else since the last step: another forward, or a far longer gap than usual."""
        phases = self.phases
        if phases.astray >= ASTRAY and self._track.steps:
            self._say(
                "the model trains outside of step(): put `with probe.step():` around every training step"
            )
        return self.pauses.begin(elsewhere=phases.elsewhere > 0)

    def _between(self, slot: int) -> None:
        """Compare clocks and report, between two rounds."""
        self._file.look(slot)
        for each in self._told:
            each.between(slot, self._track.steps)
        if unseen := self._track.unseen():
            self._say(unseen)

    def record(self, recorded: RecordedBlock) -> None:
        """Write a whole block."""
        self._file.block(recorded, self._track.steps)
        for each in self._told:
            each.add(recorded)

    def _withheld(self) -> str:
        """Followed.withheld for all ranks alike: streams of one may share a queue, and those of another may not.

        A rank waits until the others have come to the same step.
        """
        followed, session = self._followed, self._session
        why = followed.withheld(self._device)
        if followed.backend in HOST_BACKENDS or not followed.communicators():
            return why
        return str(session.control.judge("withheld", why, session.rank, session.world, max))

    def end(self, error: BaseException | None, never_entered: str) -> str:
        """Record whole blocks and how the loop ended. Returns where the run is; empty where no step has ended.

        `never_entered`: what to say where no step was.
        """
        if not self._depth and self._track.steps == 0:
            only_micro = (
                "no optimizer stepped inside step(), and nothing was reduced: a step is one optimizer step"
            )
            self._say(only_micro if self.phases.unfinished else never_entered)
        if error is None or self._device.torch_device.type == "cpu":
            self._track.stop()
        else:  # the device may have failed, or wait for peers that never come, so do not wait for it
            self._track.abandon()
        self.pauses.close(self._track.steps)
        self._file.end(error, self._track.steps)
        return self._file.where(self._track.steps, self.run_dir) if self._track.steps else ""

    def forget(self) -> None:
        """Write nothing more: the records are another process's."""
        self._file.forget()

    def abort(self, error: BaseException) -> None:
        """Tell the other ranks not to wait for this one in a baseline, now or later."""
        with let_go():  # where there is no session yet, or the store is gone, no rank waits
            self._session.control.abort({"rank": self._session.rank, "message": words(error)})

    def baseline(self, step: Step, rounds: int, steps: int, restore: Sequence[Any]) -> str:
        """Measure the arms that the loop does not run itself (Probe.baseline). Returns why not, or an empty text."""
        why = self._followed.no_baseline()
        if why:
            return why
        if not self._file.begun or self._depth:
            return "it is called between steps, after the first few"
        ddp, members = self._followed.root, self._agreement.members
        assert isinstance(ddp, DistributedDataParallel)  # of others no_baseline says why not
        self.phases.elsewhere += 1  # the gap before the next step is not input
        self._track.begin(paused=True)
        self.phases.inside = False
        self._aside = True
        try:
            with self.pauses.named(BASELINE):
                self._baseline = self._baseline or Baseline(
                    ddp, self._session, members, self.phases, self.record
                )
                compiled = self._model is not ddp
                self._baseline.run(restore, step, rounds=rounds, steps=steps, compiled=compiled)
        except SharedStepError as error:  # on every rank
            why = f"{error}; the training goes on"
        except (Aborted, TimeoutError) as error:  # another rank failed; this one goes on recording
            raise_from_signal(error)
            self.abort(error)
            why = f"{why_not(error)}; the training goes on"
        finally:
            self._aside = False
        self.phases.elsewhere += 1
        return why


EVERY_S = 10.0


class Live:
    """Collects steps with phase stamps until a line is due."""

    def __init__(self) -> None:
        self._due = time.monotonic() + EVERY_S
        self._steps: list[StepRow] = []

    def add(self, recorded: RecordedBlock) -> None:
        """Add the steps of a block; those without phases are skipped."""
        self._steps += _with_phases(recorded)

    def between(self, _slot: int, number: int) -> None:
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
            self._steps += _with_phases(recorded)

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
        if late_ms <= LATE * step_ms:
            return {"scaling/late_rank": -1, "scaling/late_ms": 0.0}
        return {"scaling/late_rank": computed.index(max(computed)), "scaling/late_ms": late_ms}

    def _write(self, figures: dict[str, float], number: int) -> None:
        if hasattr(self._log, "add_scalar"):
            for name, value in figures.items():
                self._log.add_scalar(name, value, number)
        else:
            self._log(figures)


def _with_phases(recorded: RecordedBlock) -> list[StepRow]:
    return [step for step in recorded.steps if isinstance(step, StepRow)]


def _key(slot: int, rank: int) -> str:
    return f"logged/{slot}/{rank}"


def _mean_ms(steps: Sequence[StepRow], value: Callable[[StepRow], int]) -> float:
    return sum(map(value, steps)) / len(steps) / 1e6
