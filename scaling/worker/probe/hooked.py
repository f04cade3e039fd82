"""Run a script, and open a Probe that it does not open itself: `python -m scaling.worker.probe.hooked SCRIPT ARGS`.

`-m MODULE` stands in place of a script, as with python itself.

The probe is that of `scaling.Probe`; only where a step begins and ends has to be found. A step lasts from the end of
one `Optimizer.step` to the end of the next, and is entered at the first forward with gradients, so that an evaluation
in between is a pause as it is around `probe.step()`. What runs between an optimizer's step and the next forward
(`zero_grad`, logging) counts as input, which is coarser than two lines in the script.

A model is an outermost module that a forward with gradients is called of. Of several the largest is followed, chosen
when an optimizer has stepped for the second time; forwards of the others are forward too, and the last optimizer ends a
step, or what the script makes in its place. Every rank sees the same models and steps, so all choose alike.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import sys
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.multiprocessing
from torch.optim.optimizer import register_optimizer_step_post_hook

from scaling.plain import one_line
from scaling.worker.parallel.guard import Calls, Guard, Within, guarded, tell, words
from scaling.worker.probe.follow import Outermost, size_of, stepped_by
from scaling.worker.probe.probe import Probe

_FEW = "the training ended before a step could be recorded; train for more steps (60 or more)"
BACK_END_S = 0.05
"""Time without Python's lock before Python ends: a thread of Gloo needs the lock to let go of the last collective, and
aborts the process if Python is ending then (torch 2.13: 8 of 80 ranks without a Probe, none of 80 with this wait)."""


class Hooked:
    """Finds the model and its steps, and puts a Probe around them."""

    def __init__(self) -> None:
        self._outermost: Outermost | None = None
        self._stepped: MutableMapping[torch.optim.Optimizer, list[torch.nn.Module]] = (
            weakref.WeakKeyDictionary()
        )
        """The models of each optimizer that stepped, in order; the largest one is the first."""
        self._models: list[torch.nn.Module] = []
        """Once they are chosen: the one that is followed, and the others."""
        self._calls: list[Calls] = []
        self._ends: list[Within] = []
        self._ending: MutableMapping[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()
        """Once they are chosen: whether a step ends with that optimizer."""
        self._last: set[int] = set()
        """Ids of the parameters of the last optimizer."""
        self._probe: Probe | None = None
        self._inside: contextlib.ExitStack | None = None
        self._handle: Any = None
        self._missed = False
        """Whether a step of the optimizer has ended after the choice, and no probe was opened behind it."""
        self._failed = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, every module that is called is seen until the one to be followed is chosen."""
        Guard.told = self._fail
        self._outermost = Outermost(self._fail)
        self._handle = register_optimizer_step_post_hook(guarded(self._after_step))
        try:
            yield
        finally:
            Guard.told = None
            if self._outermost is not None:
                self._outermost.close()
            for calls in self._calls:
                calls.remove()
            while self._ends:  # the last one first: they may stand around one function
                self._ends.pop().remove()
            self._outermost, self._models, self._calls = None, [], []
            self._handle.remove()

    def close(self, error: BaseException | None) -> None:
        """End the probe; say so where there was nothing to follow."""
        if self._probe is not None:
            self._probe.close(error)
        elif error is None and os.environ.get("RANK", "0") == "0":
            few = f"its optimizer stepped {'once' if self._ends else 'never'} behind a forward with gradients"
            tell(f"scaling: Probe: no training was seen: {few}; nothing was recorded")

    def _fail(self, error: Exception) -> None:
        """Follow nothing from here on."""
        if not self._failed:
            self._failed = True
            tell(f"scaling: Probe: {one_line(words(error))}; the training goes on without it")

    def _after_step(self, optimizer: torch.optim.Optimizer, *_rest: Any) -> None:
        if self._failed:
            return
        if self._outermost is not None:
            self._choose(optimizer, self._outermost)
        elif self._probe is None:
            self._missed = self._ends_step(optimizer)
        elif self._ends_step(optimizer) and self._inside is not None:
            self._inside.close()
            self._inside = None

    def _choose(self, optimizer: torch.optim.Optimizer, outermost: Outermost) -> None:
        """Note an optimizer's models; choose once an optimizer steps again, since all have stepped by then."""
        if optimizer not in self._stepped:
            if mine := outermost.trained_by(optimizer):
                self._stepped[optimizer] = mine
                self._ends.append(Within(type(optimizer).step, self._through_step))
            return
        last = list(self._stepped)[-1]
        self._ending.update((each, each is last) for each in self._stepped)
        self._last = stepped_by(last)
        mine = max(self._stepped.values(), key=lambda models: size_of(models[0]))
        others = [model for models in self._stepped.values() for model in models]
        outermost.close()
        self._outermost = None
        self._models = list(dict.fromkeys((*mine, *others)))
        self._attach()

    def _ends_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is the last optimizer, or was made since the choice with a parameter that this one has."""
        if optimizer not in self._ending:
            self._ending[optimizer] = not self._last.isdisjoint(stepped_by(optimizer))
        return self._ending[optimizer]

    def _through_step(self, step: Callable[..., Any], optimizer: Any, *args: Any, **named: Any) -> Any:
        """An optimizer's step, with the probe opened behind it once the models are chosen.

        All ranks have to meet there. A stage of a pipeline computes nothing before the stage before it has, but no rank
        needs another one between its step and the next forward. While hooks of the step run, none can be added.
        """
        result = step(optimizer, *args, **named)
        if self._models and self._probe is None and not self._failed and self._ends_step(optimizer):
            self._open()
        return result

    def _open(self) -> None:
        """The probe's own hooks act from the next forward on."""
        followed, *beside = self._models
        self._probe = Probe(followed)
        self._probe._beside, self._probe._never_entered = beside, _FEW  # noqa: SLF001
        self._probe.open()
        self._attach()
        # The hook that ends a step runs behind the probe's own, which stamps the optimizer's end.
        self._handle.remove()
        self._handle = register_optimizer_step_post_hook(guarded(self._after_step))
        while self._ends:
            self._ends.pop().remove()

    def _attach(self) -> None:
        for calls in self._calls:
            calls.remove()
        self._calls = [Calls(model, self._before_forward) for model in self._models]

    def _before_forward(self, _module: torch.nn.Module, _args: Any, _kwargs: Any) -> None:
        if self._failed or not torch.is_grad_enabled():
            return
        if self._probe is None:
            if self._missed:
                self._open()
        elif self._inside is None:
            self._inside = contextlib.ExitStack()
            self._inside.enter_context(self._probe.step())


def _of_script(
    script: str,
    show: Callable[[type[BaseException], BaseException, TracebackType | None], None],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Show an error as if the script had been started itself: from its own first frame on."""
    start = trace
    while start is not None and start.tb_frame.f_code.co_filename != script:
        start = start.tb_next
    if start is not None or isinstance(error, SyntaxError):  # a script that cannot be read has no frame
        trace = start
    show(kind, error.with_traceback(trace), trace)


def _no_ranks_of_its_own(*_args: Any, **_named: Any) -> None:
    raise SystemExit(
        "scaling: the script starts its own ranks (torch.multiprocessing.spawn), in each rank that was launched; "
        "give it to `scaling launch` in the way in which torchrun starts it"
    )


def _names_of(error: BaseException) -> dict[str, Any]:
    """What a script that ended by an error had defined."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals is not globals() and frame.f_globals.get("__name__") == "__main__":
            return dict(frame.f_globals)
    return {}


def _leave_main(names: dict[str, Any]) -> None:
    """Let threads of the script that still run, and its exit handlers, find its classes where pickle asks for them."""
    main = types.ModuleType("__main__")
    vars(main).update(names)
    sys.modules["__main__"] = main


def main() -> None:
    """Run the script, or the module behind `-m`, that the command line names as if it had been started itself."""
    sys.argv = sys.argv[1:]
    module = sys.argv[0] == "-m"
    if module:
        sys.argv = sys.argv[1:]
        sys.path[0] = str(Path.cwd())
    else:
        sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    script = sys.argv[0]
    sys.excepthook = functools.partial(_of_script, script, sys.excepthook)
    hooked = Hooked()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        torch.multiprocessing.spawn = _no_ranks_of_its_own  # type: ignore[attr-defined]
    with hooked.installed():
        try:
            if module:
                names = runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                names = runpy.run_path(script, run_name="__main__")
        except BaseException as error:
            _leave_main(_names_of(error))
            hooked.close(error)
            raise
        _leave_main(names)
        hooked.close(None)


if __name__ == "__main__":
    try:
        main()
    finally:
        time.sleep(BACK_END_S)
