"""Steps of a loop that take far longer than usual: by how much, and what the loop did meanwhile.

A step is counted from the end of the one before, on the host's clock, so what lies between two steps is in it. It is
long if it exceeds the median of the last USUAL steps by a quarter, and by LONG_SPREADS times their lower quartile's
distance from it. What takes the time is known where the loop says so, where it saves, where its model runs outside of
`step()`, and where Python collects garbage or the device's allocator retries. Every step is looked at, also those of
which nothing else is recorded: what comes back every so many steps would be missed or counted twice otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from scaling.records.format import (
    ALLOCATOR,
    ASYNC_SAVE,
    BESIDE_SAVE,
    COLLECTION,
    EVALUATION,
    PAUSES_SINGLE,
    SAVE,
    PauseRecord,
)
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.guard import Within, guarded

PAUSE_NS, TIMES, USUAL = 1_000_000_000, 10, 16
"""A gap is a pause if it is longer than PAUSE_NS and TIMES the median of the last USUAL gaps."""
KNOWN, LONG, LONG_SPREADS = 8, 0.25, 6
"""So many steps have to be known; by how much a long one exceeds them."""

_SAVES = (
    ("torch.serialization", "save", SAVE),
    ("torch.distributed.checkpoint.state_dict_saver", "save", SAVE),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save", ASYNC_SAVE),
)
"""What is recognised: (where it is defined, function, kind)."""


class Pauses:
    """Looks at every step of a loop, on the thread that runs it."""

    def __init__(self, note: Callable[[PauseRecord], None], retries: Callable[[], int] = int) -> None:
        """`note` takes a record. `retries`: of the allocator since the start."""
        self._note, self._retries = note, retries
        self._thread = threading.get_ident()
        self._walls: deque[int] = deque(maxlen=USUAL)
        self._gaps: deque[int] = deque(maxlen=USUAL)
        self._ended = self._lapped = self._gap = 0
        """Host times at which the last step ended and of the last lap, and the gap before this step."""
        self._spent: dict[str, int] = {}
        self._before: dict[str, int] = {}
        """By kind, ns since the last step ended; at the last lap."""
        self._told = self._paused = self._elsewhere = False
        self._inside = False
        """Whether the loop is in something that is named; what that calls is not named again."""
        self._collecting = self._collected = 0
        self._written: dict[str, int] = {}
        """Records by kind."""
        self._waiting: dict[str, PauseRecord] = {}
        """By kind: those since the last record, put together."""
        self._retried = retries()
        self._saves: list[list[int]] = []
        """Begin and end of asynchronous saves, steps that began meanwhile, and their ns; an end of 0: it runs."""
        self._beside: list[list[int]] = []
        """Those that run as this step begins."""
        self._undo = contextlib.ExitStack()
        self._watch = guarded(self._collection)
        gc.callbacks.append(self._watch)
        self._undo.callback(self._unwatch)
        for module, name, kind in _SAVES:
            function = getattr(sys.modules.get(module), name, None)
            self._undo.callback(Within(function, functools.partial(self._named_call, kind)).remove)

    def close(self, step: int) -> None:
        """Write what came behind the last step, and take everything back."""
        self._undo.close()
        now = now_ns()
        for kind, ns in self._spent.items():
            self._write(step, now, kind, ns)
        for save in self._saves:
            end = save[1] or now
            self._write(step, end, BESIDE_SAVE, end - save[0], *save[2:])
        for record in self._waiting.values():
            self._note(record)
        self._spent, self._saves, self._waiting = {}, [], {}

    @contextlib.contextmanager
    def named(self, kind: str, *, told: bool = True) -> Iterator[None]:
        """Around something of that kind. `told`: by the loop itself, so it counts however short it is."""
        if self._inside or threading.get_ident() != self._thread:
            yield
            return
        begin, self._inside = now_ns(), True
        try:
            yield
        finally:
            self._inside, self._told = False, self._told or told
            self._spent[kind] = self._spent.get(kind, 0) + now_ns() - begin

    def lap(self, kind: str) -> None:
        """All since the last step's end, or the last lap, was of that kind."""
        if self._ended:
            now = now_ns()
            self._before[kind] = self._before.get(kind, 0) + now - self._lapped
            self._spent, self._lapped, self._told = dict(self._before), now, True

    def leave(self) -> None:
        """A step is left that goes on later."""
        self._before, self._lapped = dict(self._spent), now_ns()

    def resume(self, *, elsewhere: bool) -> bool:
        """It goes on. Returns whether the loop did something else meanwhile."""
        if elsewhere and not self._told:
            self.lap(EVALUATION)
        return self._told

    def begin(self, *, elsewhere: bool) -> bool:
        """A step begins. Returns whether the loop did something else. `elsewhere`: the model ran outside of steps."""
        self._gap = now_ns() - self._ended if self._ended else 0
        unusual = len(self._gaps) == USUAL and self._gap > TIMES * max(statistics.median(self._gaps), 1)
        self._elsewhere = elsewhere and self._ended > 0
        self._beside = [save for save in self._saves if not save[1]]
        self._paused = self._elsewhere or self._told or (self._gap > PAUSE_NS and unusual)
        if not self._paused and self._ended:
            self._gaps.append(self._gap)
        return self._paused

    def end(self, step: int, now: int) -> None:
        """Step number `step` ended at `now`: write what took long in it."""
        for save in self._beside:
            save[2] += 1
            save[3] += now - self._ended - sum(self._spent.values())
        for kind, ns in self._parts(now - self._ended).items() if self._ended else ():
            self._write(step, now, kind, ns)
        for save in [save for save in self._saves if save[1]]:
            self._saves.remove(save)
            self._write(step, save[1], BESIDE_SAVE, save[1] - save[0], *save[2:])

    def since(self, now: int) -> None:
        """The next step counts from here on: what a probe did behind the last one is left out."""
        self._ended = self._lapped = now
        self._spent, self._before = {}, {}
        self._told, self._collected = False, 0

    def _parts(self, wall: int) -> dict[str, int]:
        """What to write of a step and the gap before it, ns by kind; an empty kind: unknown."""
        walls, spent = sorted(self._walls), self._spent
        if not self._told and not self._elsewhere:
            self._walls.append(wall)
        usual = walls[len(walls) // 2] if len(walls) >= KNOWN else wall
        more, named = wall - usual, sum(spent.values())
        if self._elsewhere and self._gap - named > self._gap / 2:
            return spent | {EVALUATION: spent.get(EVALUATION, 0) + self._gap - named}
        if self._told or self._elsewhere:
            return spent
        if len(walls) < KNOWN or more <= max(LONG * usual, LONG_SPREADS * (usual - walls[len(walls) // 4])):
            return {"": self._gap} if self._paused else {}
        if spent:  # a save gathers and makes files around what is recognised
            kind = max(spent, key=lambda name: spent[name])
            around_it = self._gap if self._gap > named else more
            return spent | {kind: spent[kind] + max(0, min(around_it, more) - named)}
        retried, self._retried = self._retried, self._retries()
        if self._collected > more / 2:
            return {COLLECTION: more}
        return {ALLOCATOR if self._retried > retried else "": more}

    def _write(self, step: int, now: int, kind: str, ns: int, steps: int = 0, steps_ns: int = 0) -> None:
        """Record it by itself, or with others where there are many of its kind."""
        count, written = 1, self._written.get(kind, 0)
        if before := self._waiting.pop(kind, None):
            count, ns = before.count + 1, before.more_ns + ns
            steps, steps_ns = before.steps + steps, before.steps_ns + steps_ns
        record = PauseRecord(
            time_ns=now,
            gap_ns=self._gap,
            step=step,
            kind=kind,
            more_ns=ns,
            count=count,
            steps=steps,
            steps_ns=steps_ns,
        )
        if count < 2 ** (written // PAUSES_SINGLE):
            self._waiting[kind] = record
        else:
            self._written[kind] = written + 1
            self._note(record)

    def _collection(self, phase: str, facts: dict[str, int]) -> None:
        if facts["generation"] < 2:  # the others are short
            return
        if phase == "start":
            self._collecting = now_ns()
        elif self._collecting:
            self._collected += now_ns() - self._collecting

    def _unwatch(self) -> None:
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._watch)

    def _named_call(self, kind: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        with self.named(kind, told=kind == ASYNC_SAVE):
            result = call(*args, **named)
        if kind == ASYNC_SAVE:
            save = [now_ns(), 0, 0, 0]
            self._saves.append(save)
            future = getattr(result, "upload_completion", result)
            future.add_done_callback(lambda _done: save.__setitem__(1, now_ns()))
        return result


def retries_of(device: torch.device) -> Callable[[], int]:
    """How often the caching allocator of a device had to free its cache and try again; 0 on a CPU."""
    stats = None if device.type == "cpu" else getattr(torch.get_device_module(device), "memory_stats", None)
    return int if stats is None else lambda: int(stats(device).get("num_alloc_retries", 0))
