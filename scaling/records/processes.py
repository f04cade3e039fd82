"""Functions of this program in other processes, since one interpreter decodes on one core only.

The processes are those of concurrent.futures, with what a library needs in addition. They import nothing of the
caller's main module, so they work in notebooks and in scripts without a guard. They end with the caller, however that
ends, and Ctrl-C reaches the caller alone. What a process was to do that died, or that does not answer, is done by the
caller itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as AnswerTimeout
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 8
"""Processes at most; more would wait for the file system."""
AHEAD = 2
"""Tasks for each process that are handed over before the first of their results is taken."""
ANSWER_S = 300.0
"""How long a process may take over a task, which takes seconds."""
_SETTINGS = {
    "PYTHONSAFEPATH": "1",
    "POLARS_MAX_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": f"{1 << 30}",
    "MALLOC_TRIM_THRESHOLD_": f"{1 << 30}",
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:-1",
}
"""Environment of a process: one thread, memory is kept for the next task, and nothing is imported from the working
directory, which may be a folder of somebody else's (from Python 3.11 on).

Tasks are alike and need the same large arrays. Otherwise NumPy (glibc) and polars (jemalloc) return them to the kernel,
and it takes a fifth of a process's CPU time to clear the pages again.
"""


def cores() -> int:
    """Cores that this process may use, at most MOST."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, MOST)


class Processes:
    """Some processes, which start when there is work for them and are gone after the exit; with 0 the caller works."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._others = set(multiprocessing.active_children())
        self._pool: ProcessPoolExecutor | None = None
        if count:
            spawn = multiprocessing.get_context("spawn")
            with _as_a_library():  # it starts a process that keeps track of the others
                self._pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_prepare)

    def __enter__(self) -> Processes:  # noqa: PYI034  # typing.Self is younger than Python 3.10
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            if error[0] is not None:
                self._kill()
            self._pool.shutdown(cancel_futures=True)

    def each(self, work: Callable[..., T], tasks: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """work(*task) of each task, in order. What `work` raises is raised here.

        A task is made shortly before its turn. `work` belongs to a module; tasks and results can be pickled.
        """
        waiting: deque[tuple[tuple[Any, ...], Future[T] | None]] = deque()
        for task in tasks:
            waiting.append((task, self._submit(work, task)))
            if len(waiting) > AHEAD * self.count:
                yield self._answer(work, *waiting.popleft())
        while waiting:
            yield self._answer(work, *waiting.popleft())

    def _submit(self, work: Callable[..., T], task: tuple[Any, ...]) -> Future[T] | None:
        """None where no process can take it."""
        if self._pool is None:
            return None
        with contextlib.suppress(BrokenExecutor, OSError), _as_a_library():
            return self._pool.submit(work, *task)
        return None

    def _answer(self, work: Callable[..., T], task: tuple[Any, ...], future: Future[T] | None) -> T:
        if future is not None:
            try:
                return future.result(ANSWER_S)
            except BrokenExecutor:
                pass
            except AnswerTimeout:
                self._kill()
        return work(*task)

    def _started(self) -> set[BaseProcess]:
        return set(multiprocessing.active_children()) - self._others

    def _kill(self) -> None:
        for process in self._started():
            process.kill()


@contextlib.contextmanager
def _as_a_library() -> Iterator[None]:
    """Processes that start meanwhile have SETTINGS and do not import the caller's main module."""
    main, before = sys.modules["__main__"], {name: os.environ.get(name) for name in _SETTINGS}
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.update(_SETTINGS)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _prepare() -> None:
    """In a new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_caller, daemon=True).start()


def _end_with_caller() -> None:
    caller = multiprocessing.parent_process()
    if caller is not None:
        caller.join()
    os._exit(1)
