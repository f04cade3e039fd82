"""What an open Probe has: from the ranks' agreement on a folder to the last line of their records."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import ScalingError, let_go, raise_from_signal
from scaling.records.format import BASELINE, RecordedBlock
from scaling.settings.topology import CPU
from scaling.worker.accelerator.devices import device_of
from scaling.worker.parallel.guard import Guard, words
from scaling.worker.parallel.streams import find
from scaling.worker.parallel.tap import HOST_BACKENDS
from scaling.worker.probe.agreement import Agreement, Clocks, patience
from scaling.worker.probe.any_loop import stages_of
from scaling.worker.probe.baseline import Baseline, SharedStepError, Step, why_not
from scaling.worker.probe.follow import follow
from scaling.worker.probe.live import Live, Log, Logged
from scaling.worker.probe.loop_file import LoopFile
from scaling.worker.probe.pauses import Pauses, retries_of
from scaling.worker.probe.phases import Phases
from scaling.worker.probe.steps import Steps
from scaling.worker.probe.track import Track
from scaling.worker.session.control import Aborted, Control
from scaling.worker.session.progress import sampling
from scaling.worker.session.session import Session

PATIENCE = timedelta(seconds=300)
"""Longest time that a rank waits for another in a baseline. Compiling, or a few steps of one rank alone, may take
minutes. Peers that went on training instead wait in their next collective meanwhile (agreement.patience)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a Probe was asked for; its docstring has each."""

    run_dir: Path | None
    name: str | None
    batch: int | None
    live: Live | None
    log: Log | None
    never_entered: str
    """What to say where no step was."""


class Recording:
    """The records of one model's training on this rank."""

    _session: Session | None = None
    _baseline: Baseline | None = None

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
        self._never_entered = options.never_entered
        followed = self._followed = follow(self._model)
        several = len({parameter.device for parameter in followed.root.parameters()}) > 1
        refused = "it spans several devices, each with a clock of its own" if several else followed.refused()
        if refused:
            raise ScalingError(f"the model is not followed: {refused}")
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
        self._phases = Phases(followed, called, (*more, *self._beside), device.clock.stamp)
        self._undo.append(self._phases.close)
        self._track = Track(
            self._phases,
            lambda: followed.detail(device),
            device,
            self._record,
            self._withheld,
            reduces_behind=followed.reduces_behind,
        )
        self._undo.append(self._track.drop)
        self._file = LoopFile(
            followed,
            self._session,
            agreement,
            clocks,
            self._phases,
            batch=options.batch,
            name=options.name,
        )
        self._undo.append(self._file.close)
        pauses = Pauses(self._file.pause, retries_of(device.torch_device))
        self._undo.append(lambda: pauses.close(self._track.steps))
        self.steps = Steps(
            self._phases,
            self._track,
            self._file,
            pauses=pauses,
            live=options.live if agreement.rank == 0 else None,  # elsewhere steps would only pile up
            logged=None
            if options.log is None
            else Logged(options.log, agreement.store, agreement.rank, agreement.world),
            say=self._say,
        )

    def _record(self, recorded: RecordedBlock) -> None:
        self.steps.record(recorded)

    def _withheld(self) -> str:
        """Followed.withheld for all ranks alike: streams of one may share a queue, and those of another may not.

        A rank waits until the others have come to the same step.
        """
        followed, session = self._followed, self._session
        why = followed.withheld(self._device)
        if session is None or followed.backend in HOST_BACKENDS or not followed.communicators():
            return why
        return str(session.control.judge("withheld", why, session.rank, session.world, max))

    def end(self, error: BaseException | None) -> str:
        """Record whole blocks and how the loop ended. Returns where the run is; empty where no step has ended."""
        if not self.steps.inside and self._track.steps == 0:
            only_micro = (
                "no optimizer stepped inside step(), and nothing was reduced: a step is one optimizer step"
            )
            self._say(only_micro if self._phases.unfinished else self._never_entered)
        fine = error is None and getattr(sys, "last_value", None) is None
        if fine or self._device.torch_device.type == "cpu":
            self._track.stop()
        else:  # the device may have failed, or wait for peers that never come, so do not wait for it
            self._track.abandon()
        self.steps.pauses.close(self._track.steps)
        self._file.end(error, self._track.steps)
        return self._file.where(self._track.steps, self.run_dir) if self._track.steps else ""

    def forget(self) -> None:
        """Write nothing more: the records are another process's."""
        self._file.forget()

    def abort(self, error: BaseException) -> None:
        """Tell the other ranks not to wait for this one in a baseline, now or later."""
        with let_go():  # where the store is gone no rank waits
            if self._session is not None:
                self._session.control.abort({"rank": self._session.rank, "message": words(error)})

    def baseline(self, step: Step, rounds: int, steps: int, restore: Sequence[Any]) -> str:
        """Measure the arms that the loop does not run itself (Probe.baseline). Returns why not, or an empty text."""
        why = self._followed.no_baseline()
        if why:
            return why
        if not self._file.begun or self.steps.inside:
            return "it is called between steps, after the first few"
        self._phases.elsewhere += 1  # the gap before the next step is not input
        self._track.begin(paused=True)
        self._phases.inside = False
        self.steps.aside = True
        try:
            with self.steps.pauses.named(BASELINE):
                self._measure(step, rounds, steps, restore)
        except SharedStepError as error:  # on every rank
            why = f"{error}; the training goes on"
        except (Aborted, TimeoutError) as error:  # another rank failed; this one goes on recording
            raise_from_signal(error)
            self.abort(error)
            why = f"{why_not(error)}; the training goes on"
        finally:
            self.steps.aside = False
        self._phases.elsewhere += 1
        return why

    def _measure(self, step: Step, rounds: int, steps: int, restore: Sequence[Any]) -> None:
        ddp, session = self._followed.root, self._session
        # of others no_baseline says why not
        assert isinstance(ddp, DistributedDataParallel)
        assert session is not None
        members = self._agreement.members
        self._baseline = self._baseline or Baseline(ddp, session, members, self._phases, self.steps.record)
        compiled = self._model is not ddp
        self._baseline.restoring(restore, step, rounds=rounds, steps=steps, compiled=compiled)
