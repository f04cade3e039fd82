"""`python -m scaling.worker.probe.hooked SCRIPT ARGS`: run a script, and open a Probe that it does not open itself.

The probe is that of `scaling.Probe`; only where a step begins and ends has to be found. A step lasts from the end of
one `Optimizer.step` to the end of the next, and is entered at the first forward with gradients, so that an evaluation
in between is a pause as it is around `probe.step()`. What runs between an optimizer's step and the next forward
(`zero_grad`, logging) counts as input, which is coarser than two lines in the script.

Several models: the largest DistributedDataParallel, or module after fully_shard, and its optimizer are followed, chosen
when an optimizer has stepped for the second time. Every rank sees the same models and steps, so all choose alike.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed._composable.fsdp
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from scaling.plain import one_line
from scaling.worker.parallel.guard import Calls, Guard, around, guarded, tell
from scaling.worker.probe.probe import Probe

_SHARDING: list[Any] = [fsdp, fsdp._fully_shard, torch.distributed._composable.fsdp]  # noqa: SLF001
"""Where scripts find fully_shard."""


class _Found(Probe):
    """The Probe of a script that has no line of one, and so no `step()` that could be left out."""

    _never_entered = "the training ended before a step could be recorded; train for more steps (60 or more)"


class Hooked:
    """Finds the model and its steps, and puts a Probe around them."""

    def __init__(self) -> None:
        self._models: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()
        """Models, with the handle of the hook on their forward."""
        self._stepped: dict[int, torch.nn.Module] = {}
        """The largest model of each optimizer that stepped, in order."""
        self._chosen: torch.nn.Module | None = None
        self._optimizer = 0
        self._probe: Probe | None = None
        self._inside: contextlib.ExitStack | None = None
        self._handle: Any = None
        self._failed = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, every DistributedDataParallel that is made, and every module that is sharded, is seen."""
        made = DistributedDataParallel.__init__

        def init(made: Any, ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
            made(ddp, *args, **kwargs)
            self._see(ddp)

        shard: Any = fsdp.fully_shard

        def fully_shard(shard: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            found = shard(module, *args, **kwargs)
            for one in module if isinstance(module, list | tuple) else [module]:
                self._see(one)
            return found

        compile_: Any = torch.compile

        def compiled(compile_: Any, model: Any = None, *args: Any, **kwargs: Any) -> Any:
            outer = compile_(model, *args, **kwargs)
            if isinstance(model, torch.nn.Module) and model in self._models:
                self._models[model].remove()  # it would be traced; the outer module's hooks are not
                self._models[model] = Calls(outer, self._before_forward)
            return outer

        DistributedDataParallel.__init__ = around(made, init)  # type: ignore[method-assign]
        torch.compile = around(compile_, compiled)
        for place in _SHARDING:
            place.fully_shard = around(shard, fully_shard)
        self._handle = register_optimizer_step_post_hook(guarded(self._after_step))
        Guard.told = self._fail
        try:
            yield
        finally:
            Guard.told = None
            DistributedDataParallel.__init__ = made  # type: ignore[method-assign]
            torch.compile = compile_
            for place in _SHARDING:
                place.fully_shard = shard
            self._handle.remove()

    def close(self, error: BaseException | None) -> None:
        """End the probe; say so where there was nothing to follow."""
        if self._probe is not None:
            self._probe.close(error)
        elif error is None and os.environ.get("RANK", "0") == "0":
            tell(
                "scaling: Probe: no training of a DistributedDataParallel, or of a module after fully_shard, was seen; "
                "nothing was recorded"
            )

    def _fail(self, error: Exception) -> None:
        """Follow nothing from here on."""
        if not self._failed:
            self._failed = True
            tell(
                f"scaling: Probe: {type(error).__name__}: {one_line(str(error))}; the training goes on without it"
            )

    def _after_step(self, optimizer: torch.optim.Optimizer, *_rest: Any) -> None:
        if self._failed:
            return
        if self._chosen is None:
            self._choose(optimizer)
        elif self._inside is not None and id(optimizer) == self._optimizer:
            self._inside.close()
            self._inside = None

    def _choose(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer's model; choose once an optimizer steps again, since all have stepped by then."""
        if id(optimizer) not in self._stepped:
            own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            mine = [one for one in self._models if any(id(p) in own for p in one.parameters())]
            if mine:
                self._stepped[id(optimizer)] = max(mine, key=_size)
            return
        # Of several optimizers of one model the last one ends the step.
        self._optimizer, self._chosen = max(reversed(self._stepped.items()), key=lambda item: _size(item[1]))

    def _before_forward(self, module: torch.nn.Module, _args: Any, _kwargs: Any) -> None:
        chosen = self._chosen
        if getattr(module, "_orig_mod", module) is not chosen or chosen is None:
            return
        if self._failed or not torch.is_grad_enabled():
            return
        if self._probe is None:
            # The probe's own hooks act from the next forward on.
            self._probe = _Found(module).open()
            self._models[chosen].remove()
            self._models[chosen] = Calls(module, self._before_forward)
            self._last()
        elif self._inside is None:
            self._inside = contextlib.ExitStack()
            self._inside.enter_context(self._probe.step())

    def _see(self, model: torch.nn.Module) -> None:
        self._models[model] = Calls(model, self._before_forward)

    def _last(self) -> None:
        """Let the hook that ends a step run behind the probe's own, which stamps the optimizer's end."""
        self._handle.remove()
        self._handle = register_optimizer_step_post_hook(guarded(self._after_step))


def _size(model: torch.nn.Module) -> tuple[int, int]:
    """Elements of its parameters, and its modules: of a sharded model and its only unit the model is the larger."""
    return sum(parameter.numel() for parameter in model.parameters()), sum(1 for _ in model.modules())


def _of_script(
    script: str,
    show: Callable[[type[BaseException], BaseException, TracebackType | None], None],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Show an error as if the script had been started itself: from its own first frame on."""
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename != script:
        own = own.tb_next
    if own is not None or isinstance(error, SyntaxError):  # a script that cannot be read has no frame
        trace = own
    show(kind, error.with_traceback(trace), trace)


def main() -> None:
    """Run the script that the command line names as if it had been started itself."""
    sys.argv = sys.argv[1:]
    script = sys.argv[0]
    sys.path[0] = str(Path(script).absolute().parent)
    sys.excepthook = functools.partial(_of_script, script, sys.excepthook)
    hooked = Hooked()
    with hooked.installed():
        try:
            runpy.run_path(script, run_name="__main__")
        except BaseException as error:
            hooked.close(error)
            raise
        hooked.close(None)


if __name__ == "__main__":
    main()
