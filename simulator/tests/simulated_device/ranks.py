"""Runs a program on ranks of the simulated device: processes that are forked from one which has torch loaded."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

LIMIT_S = 240


class RankError(AssertionError):
    """A rank failed; the message is its traceback."""


def run(
    program: Callable[..., Any], ranks: int = 1, *, group: bool = True, finish: bool = True, **arguments: Any
) -> list[Any]:
    """`program(rank, ranks, **arguments)` on each rank, as rank r's device r; returns what each gave back.

    A rank that ends without an answer gives its exit status as text. `group`: join the default group first. `finish`:
    wait for the device when the program is done.
    """
    context = _forkserver()
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            store = Path(folder) / "store" if group else None
            work = (theirs, program, rank, ranks, store, finish, arguments)
            process = context.Process(target=_rank, args=work)
            process.start()
            theirs.close()
            started.append((process, ours))
        try:
            return _answers(started)
        finally:
            for process, _ in started:
                process.kill()
                process.join()


@functools.cache
def _forkserver() -> Any:
    """The process that ranks are forked from. It finds its modules by PYTHONPATH alone."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.loaded"])
    wanted = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return context


def _answers(started: list[tuple[Any, Connection]]) -> list[Any]:
    """Each rank's answer, as they come: a rank that fails is heard while others still wait for it."""
    answers: dict[Connection, Any] = {}
    until = time.monotonic() + LIMIT_S
    while len(answers) < len(started):
        ready = wait(
            [pipe for _, pipe in started if pipe not in answers], timeout=max(0.0, until - time.monotonic())
        )
        if not ready:
            raise RankError(f"ranks gave no answer within {LIMIT_S} s")
        for process, pipe in started:
            if pipe in ready:
                answers[pipe] = _answer(process, pipe)
    for process, pipe in started:
        process.join(timeout=LIMIT_S)
        if process.exitcode != 0 and not str(answers[pipe]).startswith("ended with"):
            raise RankError(f"a rank that was done ended with {process.exitcode}")
    return [answers[pipe] for _, pipe in started]


def _answer(process: Any, pipe: Connection) -> Any:
    try:
        good, value = pipe.recv()
    except EOFError:
        process.join()
        return f"ended with {process.exitcode}"
    if not good:
        raise RankError(value)
    return value


def _rank(
    pipe: Connection,
    program: Callable[..., Any],
    rank: int,
    ranks: int,
    store: Path | None,
    finish: bool,
    arguments: dict[str, Any],
) -> None:
    import torch
    import torch.distributed as dist

    from scaling_simulator import load

    load()
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(rank)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
    try:
        if store is not None:
            file = dist.FileStore(str(store), ranks)
            dist.init_process_group("simccl", store=file, rank=rank, world_size=ranks)
        value = program(rank, ranks, **arguments)
        if finish:
            torch.accelerator.synchronize()
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:  # noqa: BLE001
        pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))
        load().shut_down()
        pipe.close()
        os._exit(1)
    pipe.send((True, value))
    pipe.close()
    sys.stdout.flush()
    load().shut_down()
