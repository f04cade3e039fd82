"""`scaling.Probe`: two lines around one's own training loop.

    with Probe(ddp_model) as probe:
        for inputs, targets in loader:
            with probe.step():
                ...

If the probe fails, it prints one line on standard error, once, and the training goes on without it. A copy or a
checkpoint of the model has nothing of it, and neither has a process that is forked from the training.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import InputError, let_go, raise_from_signal
from scaling.plain import one_line
from scaling.records.format import BASELINE, RecordedBlock
from scaling.worker.accelerator.devices import device_of
from scaling.worker.parallel.guard import Guard, Unseen, tell, words
from scaling.worker.parallel.streams import find
from scaling.worker.parallel.tap import HOST_BACKENDS
from scaling.worker.probe.agreement import Agreement, Clocks, patience
from scaling.worker.probe.any_loop import Outermost, stages_of
from scaling.worker.probe.baseline import Baseline, SharedStepError, Step, why_not
from scaling.worker.probe.follow import follow
from scaling.worker.probe.loop_file import LoopFile
from scaling.worker.probe.pauses import Pauses, retries_of
from scaling.worker.probe.phases import Phases
from scaling.worker.probe.steps import Live, Log, Logged, StepContext, Steps, as_count
from scaling.worker.probe.track import Track
from scaling.worker.session.control import Aborted, Control
from scaling.worker.session.session import Session

SWITCH = "SCALING_PROBE"
RUN_DIR = "SCALING_RUN_DIR"
"""Where the records go whatever the script says: `scaling launch` sets it."""
PATIENCE = timedelta(seconds=300)
"""Longest time that a rank waits for another in a baseline. Compiling, or a few steps of one rank alone, may take
minutes. Peers that went on training instead wait in their next collective meanwhile (agreement.patience)."""

Method = TypeVar("Method", bound=Callable[..., Any])
_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
LOOKED = 2
"""Steps in which the models are looked for, where none is given."""
NAME_MAX = 200
"""Characters of a model's name in reports."""

_open: weakref.WeakSet[Probe] = weakref.WeakSet()


def _in_child() -> None:
    """A forked process (a loader's worker) has no part in the training that it is a copy of."""
    for probe in list(_open):
        probe._leave_to_parent()  # noqa: SLF001


os.register_at_fork(after_in_child=_in_child)


def _quiet(method: Method) -> Method:
    """An entry from the training, which never raises: where it fails, the probe stops. `__enter__` returns it."""

    @functools.wraps(method)
    def call(self: Probe, *args: Any, **named: Any) -> Any:
        try:
            return method(self, *args, **named)
        except Exception as error:  # noqa: BLE001  # the training does not depend on it
            self._end_by(error)
            return (
                self if method.__name__ == "__enter__" else None
            )  # from `__exit__` it would end what was raised

    return cast("Method", call)


class Probe:
    """Records the steps of a training loop; `scaling analyze RUN` shows what they spend their time on.

    Every rank of the model's group opens one. `run_dir`: where the records go, by default
    `runs/<date>/<time>-<hash>` below rank 0's working directory; a folder that already holds records of such a loop
    gets another launch. `name`: what reports call the model, by default its class. `batch`: samples per rank and step,
    if the first dimension of the first tensor is something else. `live`: print one line about the last steps every ten
    seconds, on rank 0. `log`: `wandb.log` or a SummaryWriter, which gets figures of the last steps on rank 0. The last
    line on standard error says where the run is. `SCALING_PROBE=0` in the environment turns the probe off.
    """

    _never_entered = "step() was never entered: put `with probe.step():` around each training step"

    run_dir: Path | None = None
    """Where the records go, once the probe is open."""

    _on = _failed = _wanted = False
    _beside: Sequence[torch.nn.Module] = ()
    """Other models that the loop trains."""
    _outermost: Outermost | None = None
    """What looks for the models, until they are found."""
    _looked = 0

    def __init__(
        self,
        model: Any = None,
        *,
        run_dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
        batch: int | None = None,
        live: bool = False,
        log: Log | None = None,
    ) -> None:
        """`model`: what the loop calls: a module, a wrapper or an engine of one, or a pipeline's schedule.

        Without one it is found in the first two steps. Else InputError.
        """
        self._said: set[str] = set()
        self._undo: list[Callable[[], Any]] = []
        """What `open` has to take back."""
        try:
            if os.environ.get(SWITCH) == "0":
                return
            if model is not None:
                with Unseen():
                    follow(model)
            self._kept: Any = None if model is None else weakref.ref(model)
            given = os.environ.get(RUN_DIR) or run_dir
            self._asked = None if given is None else Path(given)
            self._name = None if name is None else one_line(str(name))[:NAME_MAX]
            self._batch = None if batch is None else as_count(batch)
            self._live, self._log = Live() if live else None, log
            self._step = StepContext(self._enter, self._leave, self._end_by)
            self._wanted = True
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001  # the training does not depend on it
            self._end_by(error)

    @_quiet
    def __enter__(self) -> Probe:  # noqa: PYI034  # typing.Self is younger than Python 3.10
        return self.open()

    @_quiet
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle of a Probe holds nothing, and loads where this package is not installed."""
        return contextlib.nullcontext, ()

    def __deepcopy__(self, _memo: object = None) -> Probe:
        """A copy of a Probe does nothing: it could record nothing."""
        twin = object.__new__(type(self))
        twin._said, twin._undo = set(), []
        return twin

    __copy__ = __deepcopy__

    def open(self) -> Probe:
        """Agree with the other ranks on a folder and begin. If that fails, say why and do nothing."""
        if not self._wanted or self._on or self._undo:
            return self
        if self._kept is None:
            self._outermost = self._outermost or Outermost()
            return self
        try:
            with Unseen():
                refused = self._begin()
            self._on, self._failed = not refused, False
            if refused:
                self._say(refused)
        except Exception as error:  # noqa: BLE001  # the training does not depend on it
            raise_from_signal(error)
            self._say(f"{words(error)}; the training goes on without the probe")
        finally:  # also where the user interrupts it
            if not self._on:
                self._stop()
        return self

    def _begin(self) -> str:
        """Begin to record; else say why not."""
        if _open:  # each would see the reductions of the other
            return "another Probe is open in this process; this one does nothing"
        self._model = self._kept()
        if self._model is None:
            return "the model is gone; this Probe does nothing"
        followed = self._followed = follow(self._model)
        several = len({parameter.device for parameter in followed.root.parameters()}) > 1
        refused = "it spans several devices, each with a clock of its own" if several else followed.refused()
        if refused:
            return f"the model is not followed: {refused}; the training goes on without the probe"
        agreement = self._agreement = Agreement(followed.members, patience(followed.communicators()))
        folder = agreement.folder(self._asked)
        clocks = Clocks(agreement)
        live = self._live if agreement.rank == 0 else None  # elsewhere steps would only pile up
        self.run_dir = folder.path.parent.parent
        device = self._device = device_of(next(followed.root.parameters()))
        agreement.hear("streams", agreement.gather("here", 1) and 1)  # nobody is missing in what follows
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
        before, Guard.told = Guard.told, self._fail
        self._undo.append(lambda: setattr(Guard, "told", before))
        called, *more = stages_of(self._model) or [self._model]
        self.phases = Phases(followed, called, (*more, *self._beside), device.clock.stamp)
        self._undo.append(self.phases.close)
        self._track = Track(
            self.phases,
            lambda detailed: followed.detail(device, detailed=detailed),
            device,
            self._record,
            self._withheld,
            reduces_behind=followed.reduces_behind,
        )
        self._undo.append(self._track.drop)
        self._file = LoopFile(
            followed, self._session, agreement, clocks, self.phases, batch=self._batch, name=self._name
        )
        self._undo.append(self._file.close)
        logged = (
            None if self._log is None else Logged(self._log, agreement.store, agreement.rank, agreement.world)
        )
        pauses = Pauses(self._file.pause, retries_of(device.torch_device))
        self._undo.append(lambda: pauses.close(self._track.steps))
        self._steps = Steps(
            self.phases, self._track, self._file, pauses=pauses, live=live, logged=logged, say=self._say
        )
        self._baseline: Baseline | None = None
        _open.add(self)
        self._undo.append(lambda: _open.discard(self))
        atexit.register(self.close)
        self._undo.append(lambda: atexit.unregister(self.close))
        return ""

    def _withheld(self) -> str:
        """Followed.withheld for all ranks alike: streams of one may share a queue, and those of another may not.

        A rank waits until the others have come to the same step.
        """
        followed, session = self._followed, self._session
        why = followed.withheld(self._device)
        if followed.backend in HOST_BACKENDS or not followed.communicators():
            return why
        return str(session.control.judge("withheld", why, session.rank, session.world, max))

    @_quiet
    def close(self, error: BaseException | None = None) -> None:
        """Record whole blocks and remove every hook. `error`: the exception that ended the loop, if any."""
        last = ""
        try:
            if self._on:
                with Unseen():
                    last = self._end(error)
        finally:
            self._stop()
        if last:
            self._say(last)

    def _end(self, error: BaseException | None) -> str:
        """Record whole blocks and how the loop ended. Returns where the run is."""
        if not self._steps.inside and self._track.steps == 0:
            only_micro = (
                "no optimizer stepped inside step(), and nothing was reduced: a step is one optimizer step"
            )
            self._say(only_micro if self.phases.unfinished else self._never_entered)
        fine = error is None and getattr(sys, "last_value", None) is None
        if fine or self._device.torch_device.type == "cpu":
            self._track.stop()
        else:  # the device may have failed, or wait for peers that never come, so do not wait for it
            self._track.abandon()
        self._steps.pauses.close(self._track.steps)
        self._file.end(error, self._track.steps)
        return self._file.where(self._track.steps, self.run_dir) if self._track.steps else ""

    def step(self) -> contextlib.AbstractContextManager[Any]:
        """Put this around one training step, from the forward to the optimizer, or around each micro-step."""
        if self._outermost is not None:
            self._look(self._outermost)
        return self._step if self._on else _NOTHING

    @_quiet
    def _look(self, outermost: Outermost) -> None:
        """Follow what was called in the first two steps, on every rank from the third one on."""
        self._looked += 1
        if self._looked <= LOOKED:
            return
        outermost.close()
        self._outermost = None
        with Unseen():
            modules = outermost.modules
        if not modules:
            self._say("no module was called with gradients in the first steps; nothing is recorded")
            return
        model, *self._beside = modules
        self._kept = weakref.ref(model)
        self.open()

    @_quiet
    def tokens(self, count: int, squared: int = 0) -> None:
        """Say inside `step()` how many tokens (or samples) this rank's step has, at once or micro-batch by micro-batch.

        Where ranks have unequal batches, the report then tells their lateness from that of a slow rank. A number on the
        host is expected, so that nothing waits for a device. `squared`: the sum of the squares of the sequences'
        lengths, with which attention grows.
        """
        if self._on:
            self._steps.tokens(count, squared)

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Put this around what the loop does beside training, such as a validation: how long that takes is reported.

        It is counted as part of no step. Saving by torch.save and torch.distributed.checkpoint is recognised without.
        """
        with contextlib.ExitStack() as stack:
            if self._on:
                with let_go():
                    stack.enter_context(self._steps.pauses.named(one_line(str(name))[:NAME_MAX]))
            yield

    @_quiet
    def _lap(self, kind: str) -> None:
        """Say that all since the last step or lap was of that kind, where a framework tells only when it ends."""
        if self._on:
            self._steps.pauses.lap(kind)

    @_quiet
    def baseline(self, step: Step, *, rounds: int = 5, steps: int = 4, restore: Sequence[Any] = ()) -> None:
        """Measure what a loop does not show: one rank alone, no DDP, DDP over one rank, messages without training.

        `step(module)` has to run one training step, forward to optimizer, on every rank, with the given module in
        place of the DDP wrapper. Call this between two steps, some ten steps after the begin. Weights, buffers,
        gradients, the optimizers that stepped so far, random generators, and everything in `restore` (objects with
        `state_dict` and `load_state_dict`, such as a grad scaler or a schedule) are restored afterwards. Meanwhile
        memory holds a second copy of all of them, and gradients for the other wrapper.
        """
        if not self._on:
            if self._failed:
                self._say("baseline() was not measured: the probe had stopped")
            return
        why = self._followed.no_baseline()
        if why:
            self._say(f"baseline() was not measured: {why}")
            return
        if not self._file.begun or self._steps.inside:
            self._say("baseline() is called between steps, after the first few; nothing was measured")
            return
        self.phases.elsewhere += 1  # the gap before the next step is not input
        self._track.begin(paused=True)
        self.phases.inside = False
        self._steps.aside = True
        try:
            with self._steps.pauses.named(BASELINE):
                self._measure(step, rounds, steps, restore)
        except SharedStepError as error:  # on every rank
            self._say(f"baseline() was not measured: {error}; the training goes on")
        except (Aborted, TimeoutError) as error:  # another rank failed; this one goes on recording
            raise_from_signal(error)
            self._abort(error)
            self._say(f"baseline() was not measured: {why_not(error)}; the training goes on")
        finally:
            self._steps.aside = False
        self.phases.elsewhere += 1

    def _measure(self, step: Step, rounds: int, steps: int, restore: Sequence[Any]) -> None:
        ddp = self._followed.root
        # of others no_baseline says why not
        assert isinstance(ddp, DistributedDataParallel)
        members = self._agreement.members
        self._baseline = self._baseline or Baseline(ddp, self._session, members, self.phases, self._record)
        compiled = self._model is not ddp
        self._baseline.restoring(restore, step, rounds=rounds, steps=steps, compiled=compiled)

    def _record(self, recorded: RecordedBlock) -> None:
        self._steps.record(recorded)

    def _enter(self) -> None:
        if self._on:
            self._steps.enter()

    def _leave(self, failed: bool) -> None:
        if self._on:
            self._steps.leave(failed=failed)
        elif self._failed:  # in a hook
            self._stop()

    def _fail(self, error: Exception) -> None:
        """Say so once, and record nothing more. Hooks go at the end of the step: this may run inside of one."""
        raise_from_signal(error)
        if not self._failed:
            self._failed, self._on = True, False
            self._say(f"stopped: {words(error)}; the training goes on without it", everywhere=True)
            self._abort(error)

    def _end_by(self, error: Exception) -> None:
        """`_fail`, and take everything back."""
        self._fail(error)
        self._stop()

    def _abort(self, error: BaseException) -> None:
        """Tell the other ranks not to wait for this one in a baseline, now or later."""
        with let_go():  # where the store is gone no rank waits
            self._session.control.abort({"rank": self._session.rank, "message": words(error)})

    def _stop(self) -> None:
        """Take everything back, and hold nothing of the training."""
        self._on = False
        if self._outermost is not None:
            self._outermost.close()
            self._outermost = None
        try:
            while self._undo:
                with let_go(), Unseen():
                    self._undo.pop()()
            for part in _PARTS:
                self.__dict__.pop(part, None)
            self._beside = ()
        finally:  # a signal may come in between
            if self._undo:
                self._stop()

    def _leave_to_parent(self) -> None:
        """In a forked process: the records are the parent's."""
        with let_go():
            self._file.forget()
        self._stop()

    def _say(self, text: str, *, everywhere: bool = False) -> None:
        """Print one line on standard error, once; on rank 0 only, unless it is about this rank (`everywhere`)."""
        with let_go():
            rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
            if text not in self._said and (everywhere or rank == 0):
                self._said.add(text)
                tell(f"scaling: Probe: {one_line(text)}")


_PARTS = (
    *("_model", "_followed", "_agreement", "_device", "_session"),
    *("phases", "_track", "_file", "_steps", "_baseline"),
)
"""What an open Probe has beside a closed one."""
