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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from scaling.errors import InputError, ScalingError, let_go, raise_from_signal
from scaling.plain import one_line
from scaling.worker.parallel.guard import Unseen, tell, words
from scaling.worker.probe.baseline import Step
from scaling.worker.probe.follow import Outermost, follow
from scaling.worker.probe.recording import NAME_MAX, Log, Options, Recording, as_count

SWITCH = "SCALING_PROBE"
RUN_DIR = "SCALING_RUN_DIR"
"""Where the records go whatever the script says: `scaling launch` sets it."""
Method = TypeVar("Method", bound=Callable[..., Any])
_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
LOOKED = 2
"""Steps in which the models are looked for, where none is given."""
_open: weakref.WeakSet[Probe] = weakref.WeakSet()
_devices_of_parent: list[Any] = []
"""In a forked process: devices whose events are never freed, since only the parent may call their driver."""


def _in_child() -> None:
    """A forked process (a loader's worker) has no part in the training that it is a copy of."""
    for probe in list(_open):
        probe._leave_to_parent()  # noqa: SLF001


os.register_at_fork(after_in_child=_in_child)


def _quiet(method: Method) -> Method:
    """An entry from the training, which never raises: where it fails, the probe stops, and `with` goes on."""

    @functools.wraps(method)
    def call(self: Probe, *args: Any, **named: Any) -> Any:
        try:
            return method(self, *args, **named)
        except Exception as error:  # noqa: BLE001  # the training does not depend on it
            self._end_by(error)
            # of `__exit__` nothing, which lets pass what was raised
            return {"__enter__": self, "pause": _NOTHING}.get(method.__name__)

    return cast("Method", call)


class StepContext:
    """What step() returns each time, so that entering it makes no object; and phase(). `failed` is told of errors."""

    def __init__(
        self, enter: Callable[[], None], leave: Callable[[bool], None], failed: Callable[[Exception], None]
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
    _given: Any = None
    """Refers to the model that it was told, if it was told one."""
    _kept: Any = None
    """Refers to that model, or to the one that was found."""
    _recording: Recording | None = None
    """What it has while it is open."""
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
            self._given = self._kept = None if model is None else weakref.ref(model)
            given = os.environ.get(RUN_DIR) or run_dir
            self._options = Options(
                run_dir=None if given is None else Path(given),
                name=None if name is None else one_line(str(name))[:NAME_MAX],
                batch=None if batch is None else as_count(batch),
                live=live,
                log=log,
            )
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
            if self._outermost is None:
                self._outermost, self._looked = Outermost(self._end_by), 0
            return self
        try:
            with Unseen():
                self._begin()
            self._on, self._failed = True, False
        except Exception as error:  # noqa: BLE001  # the training does not depend on it
            raise_from_signal(error)
            self._say(f"{words(error)}; the training goes on without the probe")
        finally:  # also where the user interrupts it
            if not self._on:
                self._stop()
        return self

    def _begin(self) -> None:
        """Begin to record; else ScalingError says why not."""
        if _open:  # each would see the reductions of the other
            raise ScalingError("another Probe is open in this process, and this one does nothing")
        model = self._kept()
        if model is None:
            raise ScalingError("the model is gone")
        self._recording = Recording(model, self._beside, say=self._say, failed=self._fail, undo=self._undo)
        self._recording.begin(self._options)
        self.run_dir = self._recording.run_dir
        _open.add(self)
        self._undo.append(lambda: _open.discard(self))
        atexit.register(self._close_at_exit)
        self._undo.append(lambda: atexit.unregister(self._close_at_exit))

    def _close_at_exit(self) -> None:
        """With what ended the process; in a notebook `last_value` may be older than the training."""
        self.close(getattr(sys, "last_value", None))

    @_quiet
    def close(self, error: BaseException | None = None) -> None:
        """Record whole blocks and remove every hook. `error`: the exception that ended the loop, if any."""
        last = ""
        try:
            if recording := self._active:
                with Unseen():
                    last = recording.end(error, self._never_entered)
        finally:
            self._stop()
            self._kept = self._given  # the next training may wrap its model anew
        if last:
            self._say(last)

    @property
    def _active(self) -> Recording | None:
        """What records now."""
        return self._recording if self._on else None

    def step(self) -> contextlib.AbstractContextManager[Any]:
        """Put this around one training step, from the forward to the optimizer, or around each micro-step."""
        if self._outermost is not None:
            try:
                self._look(self._outermost)
            except Exception as error:  # noqa: BLE001  # the training does not depend on it
                self._end_by(error)
        return self._step if self._on else _NOTHING

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
        if recording := self._active:
            recording.tokens(count, squared)

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Put this around a part of a step, such as its rollout, for a time, waits and a late rank of its own.

        Phases do not nest. A rank may enter one several times in a step, or not at all: its time is the sum.
        """
        return StepContext(lambda: self._enter_phase(name), self._leave_phase, self._end_by)

    def _enter_phase(self, name: Any) -> None:
        if recording := self._active:
            recording.enter_phase(name)

    def _leave_phase(self, _failed: bool) -> None:
        if recording := self._active:
            recording.phases.leave_named()

    @_quiet
    def pause(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Put this around what the loop does beside training, such as a validation: how long that takes is reported.

        It is counted as part of no step. Saving by torch.save and torch.distributed.checkpoint is recognised without.
        """
        if not (recording := self._active):
            return _NOTHING
        pauses, stack = recording.pauses, contextlib.ExitStack()
        kind = one_line(str(name))[:NAME_MAX]
        return StepContext(
            lambda: stack.enter_context(pauses.named(kind)), lambda _failed: stack.close(), self._end_by
        )

    @_quiet
    def _lap(self, kind: str) -> None:
        """Say that all since the last step or lap was of that kind, where a framework tells only when it ends."""
        if recording := self._active:
            recording.pauses.lap(kind)

    @_quiet
    def baseline(self, step: Step, *, rounds: int = 5, steps: int = 4, restore: Sequence[Any] = ()) -> None:
        """Measure what a loop does not show: one rank alone, no DDP, DDP over one rank, messages without training.

        `step(module)` has to run one training step, forward to optimizer, on every rank, with the given module in
        place of the DDP wrapper. Call this between two steps, some ten steps after the begin. Weights, buffers,
        gradients, the optimizers that stepped so far, random generators, and everything in `restore` (objects with
        `state_dict` and `load_state_dict`, such as a grad scaler or a schedule) are restored afterwards. Meanwhile
        memory holds a second copy of all of them, and gradients for the other wrapper.
        """
        why = "the probe had stopped" if self._failed else ""
        if recording := self._active:
            why = recording.baseline(step, rounds, steps, restore)
        if why:
            self._say(f"baseline() was not measured: {why}")

    def _enter(self) -> None:
        if recording := self._active:
            recording.enter()

    def _leave(self, failed: bool) -> None:
        if recording := self._active:
            recording.leave(failed=failed)
        elif self._failed:  # in a hook
            self._stop()

    def _fail(self, error: Exception) -> None:
        """Say so once, and record nothing more. Hooks go at the end of the step: this may run inside of one."""
        raise_from_signal(error)
        if not self._failed:
            self._failed, self._on = True, False
            self._say(f"stopped: {words(error)}; the training goes on without it", everywhere=True)
            if self._recording is not None:
                self._recording.abort(error)

    def _end_by(self, error: Exception) -> None:
        """`_fail`, and take everything back."""
        self._fail(error)
        self._stop()

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
            if self._recording is not None:
                vars(self._recording).clear()  # they hold one another
            self._recording, self._beside = None, ()
        finally:  # a signal may come in between
            if self._undo:
                self._stop()

    def _leave_to_parent(self) -> None:
        """In a forked process: the records are the parent's."""
        with let_go():
            if self._recording is not None:
                _devices_of_parent.append(vars(self._recording).get("_device"))
                self._recording.forget()
        self._stop()

    def _say(self, text: str, *, everywhere: bool = False) -> None:
        """Print one line on standard error, once; on rank 0 only, unless it is about this rank (`everywhere`)."""
        with let_go():
            rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
            if text not in self._said and (everywhere or rank == 0):
                self._said.add(text)
                tell(f"scaling: Probe: {one_line(text)}")
