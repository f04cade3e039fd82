"""Functions of this program in other processes, since one interpreter decodes on one core only.

A process is a plain Python command at the other end of a socket. It needs nothing of the caller's main module, so it
works in notebooks and in scripts without a guard. It ends when its socket does: with `Processes`, and with the caller,
however that ends. Ctrl-C reaches the caller alone. What a process was to do that died, or that does not answer, is
done by the caller itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 8
"""Processes at most; more would wait for the file system."""
ANSWER_S = 300.0
"""How long no process may answer; a task takes seconds."""
TICK_S = 1.0
"""How long the caller waits at a time."""
GRACE_S = 0.5
"""How long a process goes on whose caller is gone: one that has nothing to do ends by itself."""
END_S = 2.0
"""How long the caller waits for that."""
_SETTINGS = {
    "POLARS_MAX_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": f"{1 << 30}",
    "MALLOC_TRIM_THRESHOLD_": f"{1 << 30}",
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:-1",
}
"""Environment of a process: one thread, and memory is kept for the next task.

Tasks are alike and need the same large arrays. Otherwise NumPy (glibc) and polars (jemalloc) return them to the kernel,
and it takes a fifth of a process's CPU time to clear the pages again.
"""
_COMMAND = (
    "import sys; sys.path[:] = {path!r}; from scaling.records.processes import serve; serve({descriptor})"
)
_LOST = (EOFError, OSError)
"""What the caller sees of a process that died."""


def cores() -> int:
    """Cores that this process may use, at most MOST."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, MOST)


class Processes:
    """Some processes, which are started on entry and are gone after the exit."""

    def __init__(self, count: int, keep: Sequence[int] = ()) -> None:
        """`keep`: open files that they have too, by the same numbers."""
        self._count, self._keep = count, tuple(keep)
        self._all: dict[Connection, subprocess.Popen[bytes]] = {}
        self._lost: set[Connection] = set()

    def __enter__(self) -> Processes:  # noqa: PYI034  # typing.Self is younger than Python 3.10
        try:
            for _ in range(self._count):
                self._start()
        except OSError:  # no more processes, memory or files: those that there are have to do
            pass
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(at_once=kind is not None)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that are not known to have died."""
        return tuple(of.pid for connection, of in self._all.items() if connection not in self._lost)

    def each(
        self, work: Callable[..., T], tasks: Iterable[tuple[Any, ...]], given: tuple[Any, ...] = ()
    ) -> Iterator[T]:
        """work(*given, *task) of each task, in order. What `work` raises is raised here.

        A task is made when a process is free for it; `given` is sent to each process once. The processes are not used
        after an error. `work` belongs to a module; tasks and results can be pickled.
        """
        waiting = enumerate(tasks)
        new = set(self._all)
        done: dict[int, T] = {}
        running: dict[Connection, tuple[int, tuple[Any, ...]]] = {}
        at, made = 0, 0
        while True:
            for connection in self._all:
                if connection not in running and connection not in self._lost:
                    one = next(waiting, None)
                    if one is None:
                        break
                    running[connection], made = one, made + 1
                    with contextlib.suppress(OSError):  # it died; that is seen below
                        connection.send((work, given if connection in new else None, one[1]))
                    new.discard(connection)
            if not running and at == made:  # none is free any more, or no task is left
                one = next(waiting, None)
                if one is None:
                    return
                made += 1
                done[one[0]] = work(*given, *one[1])
            elif at not in done:
                ready = _ready(running) or self._gave_up(running)
                for connection in [one for one in running if one in ready]:
                    number, task = running.pop(connection)
                    done[number] = self._answer(connection, work, (*given, *task))
            while at in done:
                yield done.pop(at)
                at += 1

    def _gave_up(self, running: Iterable[Connection]) -> list[Connection]:
        """End processes that do not answer."""
        for connection in running:
            self._all[connection].kill()
        self._lost.update(running)
        return list(running)

    def _answer(self, connection: Connection, work: Callable[..., T], task: tuple[Any, ...]) -> T:
        if connection not in self._lost:
            try:
                good, value = connection.recv()
            except _LOST:
                self._lost.add(connection)
            else:
                if not good:
                    raise value
                return value  # type: ignore[no-any-return]
        return work(*task)

    def _start(self) -> None:
        own, other = socket.socketpair()
        with other:
            command = _COMMAND.format(path=[entry for entry in sys.path if entry], descriptor=other.fileno())
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(other.fileno(), *self._keep),
                    env=os.environ | _SETTINGS,
                    start_new_session=True,
                )
            except OSError:
                own.close()
                raise
        self._all[Connection(own.detach())] = process

    def _end(self, *, at_once: bool = True) -> None:
        for connection in self._all:
            connection.close()
        for process in self._all.values():
            try:
                process.wait(0.0 if at_once else END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may not let go of it
                    process.wait(END_S)
        self._all.clear()


def _ready(running: Collection[Connection]) -> Sequence[object]:
    """Those that answer, within ANSWER_S.

    Ctrl-C just before a wait is seen only after it, so a wait is short.
    """
    until = time.monotonic() + ANSWER_S
    while not (ready := wait(list(running), min(TICK_S, ANSWER_S))) and time.monotonic() < until:
        pass
    return ready


def serve(descriptor: int) -> None:
    """Do what the caller at the other end of a socket asks, until that end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, OSError):
        given: tuple[Any, ...] = ()
        while True:
            work, new, task = connection.recv()
            given = given if new is None else new
            try:
                answer = (True, work(*given, *task))
            except Exception as error:  # noqa: BLE001  # the caller raises it
                answer = (False, error)
            connection.send(answer)


def _end_with(descriptor: int) -> None:
    """End this process once the other end of its socket is closed, also in the middle of its work."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    hung_up.poll()
    time.sleep(GRACE_S)
    os._exit(1)
