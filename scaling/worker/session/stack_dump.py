"""Record what a rank is doing when it is told to end, or when it crashes.

A rank that hangs cannot report, since its main thread does not return. When torchrun, the launcher or Slurm gives up
on it, they send SIGTERM. A thread that has slept so far then writes `stack-<r>.json`: the stage, the main thread's
stack, and the last collective from torch's flight recorder. The signal handler wakes it through a pipe, so it costs
nothing until then, and it works while the main thread waits in C++. If C code keeps the interpreter's lock, the
thread cannot run either; then faulthandler writes the main thread's stack into the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from scaling.records.files import write_json
from scaling.records.paths import LaunchFolder

ENDED = 128 + signal.SIGTERM
LOOK_S = 3.0
"""Longest time for writing the stack."""


def watch(folder: LaunchFolder, rank: int, stage: Callable[[], str]) -> Callable[[int], NoReturn]:
    """Begin to watch. Call it on the main thread of a worker whose standard error is already its log.

    Returns a function that ends the process with a status. If the process was told to end before, its stack is written
    first: a rank that a signal had stopped fails when it continues, because its peers are gone, and where it stood says
    more than that failure.
    """
    # PR_SET_PDEATHSIG: the torchrun that started this rank leaves no process behind when it dies.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    faulthandler.enable()
    main = threading.get_ident()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    interrupted: list[list[str]] = []
    # Python's handler notes where a rank stood that was stopped and continues. If the handler does not run, the main
    # thread has not moved.
    signal.signal(signal.SIGTERM, lambda _, frame: interrupted.append(_calls(frame)))
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # Only this thread's stack: the others keep running while faulthandler walks their stacks without the interpreter's
    # lock, and a thread that ended meanwhile has crashed the rank.
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)
    os.register_at_fork(after_in_child=_look_away)

    def look_out() -> None:
        while signal.SIGTERM not in os.read(reader, 64):
            pass  # another signal woke it
        try:
            stack = interrupted[0] if interrupted else _calls(sys._current_frames()[main])  # noqa: SLF001
            places = {"rank": rank, "stage": stage(), "collective": last_collective(), "entered": entered()}
            write_json(folder.stack(rank), {**places, "stack": stack})
        finally:
            os._exit(ENDED)

    def leave(status: int) -> NoReturn:
        if interrupted:
            time.sleep(LOOK_S)  # the watching thread ends the process
        os._exit(status)

    threading.Thread(target=look_out, name="lookout", daemon=True).start()
    return leave


def _calls(frame: FrameType | None) -> list[str]:
    """The stack from a frame outwards, `FILE:LINE in FUNCTION`, without the signal handler."""
    calls: list[str] = []
    for each, line in traceback.walk_stack(frame):
        calls.append(f"{each.f_code.co_filename}:{line} in {each.f_code.co_name}")
        if each.f_code.co_filename == __file__:
            calls.clear()
    return calls


def entered() -> dict[str, int]:
    """How many collectives this rank has entered, by the name of their group: a rank that is behind is late."""
    counts: dict[str, int] = {}
    with contextlib.suppress(Exception):  # private names of torch may change
        for entry in _collectives():
            group = entry["process_group"][0]
            counts[group] = max(counts.get(group, 0), entry["collective_seq_id"])
    return counts


def _collectives() -> list[dict[str, Any]]:
    """Entries of torch's flight recorder; it keeps the latest."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    c10d = torch._C._distributed_c10d  # noqa: SLF001
    dump = getattr(c10d, "_dump_nccl_trace_json", None) or c10d._dump_fr_trace_json  # noqa: SLF001
    return list(json.loads(dump(includeCollectives=True, onlyActive=False))["entries"])


def last_collective() -> str | None:
    """The last collective in torch's flight recorder for this rank; None where there is none."""
    torch: Any = sys.modules.get("torch")
    try:
        last = max(_collectives(), key=lambda entry: entry["record_id"])
        names = torch.distributed.distributed_c10d._world.pg_names  # noqa: SLF001
        size = next((g.size() for g, name in names.items() if name == last["process_group"][0]), None)
        items = sum(math.prod(shape) for shape in last["input_sizes"])
        among = "" if size is None else f" among {size} ranks"
        return f"{last['profiling_name']} number {last['collective_seq_id']} of {items} values{among}"
    except Exception:  # noqa: BLE001  # private names of torch may change; the stack matters more
        return None


def _look_away() -> None:
    """In a forked child (a data loader's worker), restore the default action of SIGTERM."""
    signal.set_wakeup_fd(-1)
    faulthandler.unregister(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
