"""`scaling.Probe`: two lines around one's own training loop.

    with Probe(ddp_model) as probe:
        for inputs, targets in loader:
            with probe.step():
                ...

If the probe fails once the training has begun, it prints one line on standard error, once, and the training goes on
without it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import InputError, ScalingError
from scaling.records.format import RecordedBlock
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.accelerator.devices import device_of
from scaling.worker.parallel.buckets import Buckets
from scaling.worker.parallel.tap import Tap
from scaling.worker.probe.agreement import Agreement
from scaling.worker.probe.baseline import Baseline, SharedStepError, Step
from scaling.worker.probe.clocks import Clocks
from scaling.worker.probe.gaps import Gaps
from scaling.worker.probe.live import Live
from scaling.worker.probe.loop_file import LoopFile
from scaling.worker.probe.phases import Phases
from scaling.worker.probe.state import State
from scaling.worker.probe.track import Track
from scaling.worker.session.control import Aborted, Control
from scaling.worker.session.session import Session

SWITCH = "SCALING_PROBE"
RUN_DIR = "SCALING_RUN_DIR"
"""Where the records go whatever the script says: `scaling launch` sets it."""
ASTRAY = 8
"""The probe says so after this many forwards with gradients outside of any step."""
PATIENCE_S = 300.0
"""Longest time that a rank waits for another in a baseline. Compiling, or a few steps of one rank alone, may take
minutes. Peers that went on training instead wait in their next collective meanwhile, by default 10 minutes on NCCL."""

_probed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class Probe:
    """Records the steps of a training loop; `scaling analyze RUN` shows what they spend their time on.

    Every rank of the model's group opens one. `run_dir`: where the records go, by default
    `runs/<date>/<time>-<hash>` below rank 0's working directory; a folder that already holds records of such a loop
    gets another launch. `name`: what reports call the model, by default its class. `batch`: samples per rank and step,
    if the first dimension of the first tensor is something else. `live`: print one line about the last steps every ten
    seconds, on rank 0. The last line on standard error says where the run is. `SCALING_PROBE=0` in the environment
    turns the probe off.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        run_dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
        batch: int | None = None,
        live: bool = False,
    ) -> None:
        """InputError where `model` is neither DDP's wrapper nor what torch.compile made of one."""
        self._on = self._failed = False
        self._nothing: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.run_dir: Path | None = None
        """Where the records go, once the probe is open."""
        if os.environ.get(SWITCH) == "0":
            return
        ddp = getattr(model, "_orig_mod", model)
        if not isinstance(ddp, DistributedDataParallel):
            raise InputError(
                f"Probe({type(model).__name__}): a DistributedDataParallel is expected; "
                "wrap the model before, Probe(DistributedDataParallel(model))"
            )
        self._wanted = True
        self._model, self._ddp = model, ddp
        given = os.environ.get(RUN_DIR) or run_dir
        self._asked = None if given is None else Path(given)
        self._name = name
        self._batch = batch
        self._live = Live() if live else None
        self._step = _Step(self)
        self._said: set[str] = set()

    def __enter__(self) -> Probe:  # noqa: PYI034  # typing.Self is younger than Python 3.10
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def open(self) -> Probe:
        """Agree with the other ranks on a folder and begin. If that fails, say why and do nothing."""
        if not getattr(self, "_wanted", False) or self._on:
            return self
        if _probed:  # each would see the reductions of the other
            self._say("another Probe is open in this process; this one does nothing")
            return self
        if len({parameter.device for parameter in self._ddp.parameters()}) > 1:
            self._say(
                "the model spans several devices, each with a clock of its own; the training goes on without it"
            )
            return self
        try:
            agreement = Agreement(self._ddp)
            folder = agreement.folder(self._asked)
            clocks = Clocks(agreement)
        except (ScalingError, RuntimeError, OSError) as error:
            self._say(f"{error}; the training goes on without the probe")
            return self
        self._agreement = agreement
        if agreement.rank != 0:
            self._live = None  # only rank 0 prints; elsewhere steps would only pile up
        self.run_dir = folder.path.parent.parent
        parameter = next(self._ddp.parameters())
        device = device_of(parameter)
        self._session = Session(
            rank=agreement.rank,
            world=agreement.world,
            host=agreement.host,
            folder=folder,
            device=device,
            control=Control(agreement.store, agreement.rank, patience_s=PATIENCE_S),
        )
        self._device = device
        self.phases = Phases(self._ddp, self._model, device.clock.stamp)
        self._track = Track(self.phases, Tap(device.clock), Buckets(self._ddp), device, self._record)
        self._track.between = self._between
        self._file = LoopFile(
            self._ddp, self._session, agreement, clocks, self.phases, batch=self._batch, name=self._name
        )
        self._depth = 0
        self._left_ns = 0
        self._baseline: Baseline | None = None
        self._gaps = Gaps()
        self._on, self._failed = True, False
        _probed.add(self._ddp)
        atexit.register(self.close)
        return self

    def close(self, error: BaseException | None = None) -> None:
        """Record whole blocks and remove every hook. `error`: the exception that ended the loop, if any."""
        if not self._on:
            return
        if self._depth == 0 and self._track.steps == 0:
            self._say("step() was never entered: put `with probe.step():` around each training step")
        with self._guard():
            fine = error is None and getattr(sys, "last_value", None) is None
            if fine or self._device.torch_device.type == "cpu":
                self._track.stop()
            else:  # the device may have failed, or wait for peers that never come, so do not wait for it
                self._track.abandon()
            self._file.end(error, self._track.steps)
        on = self._on  # the guard may have stopped the probe, and said why
        self._stop()
        if on and self._track.steps:
            self._say(self._file.where(self._track.steps, self.run_dir))

    def step(self) -> contextlib.AbstractContextManager[Any]:
        """Put this around one training step, from the forward to the optimizer, or around each micro-step."""
        return self._step if self._on else self._nothing

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
        if self._ddp.static_graph or self._ddp.find_unused_parameters:
            self._say(
                "baseline() was not measured: with static_graph or find_unused_parameters DDP counts gradients from "
                "backward to backward, and would count those of the baseline in the training"
            )
            return
        if any(isinstance(module, SyncBatchNorm) for module in self._ddp.module.modules()):
            self._say(
                "baseline() was not measured: SyncBatchNorm waits for the other ranks, and a rank alone has none"
            )
            return
        if not self._file.begun or self._depth:
            self._say("baseline() is called between steps, after the first few; nothing was measured")
            return
        self.phases.elsewhere += 1  # the gap before the next step is not input
        with self._guard():
            self._track.begin(paused=True)
            self.phases.inside = False
            try:
                self._measure(step, rounds, steps, restore)
            except SharedStepError as error:  # on every rank
                self._say(f"baseline() was not measured: {error}; the training goes on")
            except (Aborted, TimeoutError) as error:  # another rank failed; this one goes on recording
                self._abort(error)
                self._say(f"baseline() was not measured: {_why(error)}; the training goes on")
        self.phases.elsewhere += 1

    def _measure(self, step: Step, rounds: int, steps: int, restore: Sequence[Any]) -> None:
        if self._baseline is None:
            self._baseline = Baseline(
                self._ddp, self._session, self._agreement.members, self.phases, self._record
            )
        state = State(self._ddp.module, self.phases.optimizers.values(), restore)
        try:
            for parameter in self._ddp.parameters():
                parameter.grad = None
            self._baseline.run(step, rounds=rounds, steps=steps, compiled=self._model is not self._ddp)
        finally:
            self.phases.inside = False
            state.restore()

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > 1:
            self._say("step() inside step(): the inner one is left out; a step is one optimizer step")
            return
        phases = self.phases
        if phases.unfinished:
            phases.inside = True
            return
        with self._guard():
            self._track.begin(paused=self._paused())

    def _exit(self, failed: bool) -> None:
        self._depth -= 1
        if self._depth or not self._on:
            return
        phases = self.phases
        phases.inside = False
        if failed or not phases.unfinished:
            if phases.looking:
                self._file.sample(phases.samples)
            with self._guard():
                self._track.end(failed=failed)
        self._left_ns = now_ns()

    def _paused(self) -> bool:
        """Whether the loop did something else since the last step: another forward, or a far longer gap than usual."""
        if not self._left_ns:
            return False
        phases, now = self.phases, now_ns()
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
        if self._track.blind:
            self._track.blind = 0
            self._say(
                "no backward through the model's outputs was seen in step(): call the model that was given to Probe"
            )

    def _record(self, recorded: RecordedBlock) -> None:
        self._file.block(recorded)
        if self._live is not None:
            self._live.add(recorded.steps)

    @contextlib.contextmanager
    def _guard(self) -> Any:
        """Stop the probe, and not the training, if something fails inside."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a full disk or a lost peer must not end the training
            self._say(
                f"stopped: {type(error).__name__}: {error}; the training goes on without it", everywhere=True
            )
            self._failed = True
            self._abort(error)
            self._stop()

    def _abort(self, error: BaseException) -> None:
        """Tell the other ranks not to wait for this one in a baseline, now or later."""
        record = {"rank": self._session.rank, "message": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(Exception):  # if the store is gone, no rank waits
            self._session.control.abort(record)

    def _stop(self) -> None:
        self._on = False
        atexit.unregister(self.close)
        self.phases.close()
        self._track.drop()
        _probed.discard(self._ddp)
        self._file.close()

    def _say(self, text: str, *, everywhere: bool = False) -> None:
        """Print one line on standard error, once; on rank 0 only, unless it is about this rank (`everywhere`)."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        if text not in self._said and (everywhere or rank == 0):
            self._said.add(text)
            print(f"scaling: Probe: {text}", file=sys.stderr, flush=True)


def _why(error: Aborted | TimeoutError) -> str:
    """Which rank stopped and why, or what was waited for in vain."""
    if isinstance(error, TimeoutError):
        return str(error)
    record = json.loads(str(error))
    return f"rank {record['rank']} stopped ({record['message']})"


class _Step:
    """What step() returns each time, so that entering a step makes no object."""

    def __init__(self, probe: Probe) -> None:
        self._enter: Callable[[], None] = probe._enter  # noqa: SLF001
        self._exit: Callable[[bool], None] = probe._exit  # noqa: SLF001

    def __enter__(self) -> None:
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(kind is not None)
