"""What a rank is doing when it is told to end, and a word from one that crashes.

A rank that hangs cannot tell: its main thread does not come back from where it is. Whoever gives up
on it sends SIGTERM (torchrun, the launcher, Slurm), and then a thread that has slept so far writes
`stack-<r>.json`: the stage, the main thread's stack, and the last collective by torch's flight
recorder. The kernel's signal handler wakes it through a pipe, so it costs nothing until then, and it
works while the main thread waits in C++. Where even that is not possible (C code that keeps the
interpreter's lock), faulthandler has put the main thread's stack into the log by itself.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from scaling.files import write_json
from scaling.store import LaunchFolder

ENDED = 128 + signal.SIGTERM
LOOK_S = 3.0
"""What writing the stack may take at most."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def watch(folder: LaunchFolder, rank: int, stage: Callable[[], str]) -> Callable[[int], NoReturn]:
    """Begin to look out, on the main thread of a worker whose standard error is its log already.

    Returns what ends the process with a status. One that was told to end first has its stack written: a rank that
    some signal had stopped goes on to fail, as its peers are gone, and where it stood says more than that.
    """
    _die_with_the_agent()
    faulthandler.enable()
    main = threading.get_ident()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    interrupted: list[list[str]] = []
    # Wherever Python runs its handler comes first, so that a rank that was stopped and goes on is seen where it
    # stood; where it does not come, the main thread has not moved.
    signal.signal(signal.SIGTERM, lambda _, frame: interrupted.append(_calls(frame)))
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # Of this thread alone: others run on while faulthandler, without the interpreter's lock, walks through their
    # stacks, and one that ends meanwhile has crashed the rank instead of letting it write its own.
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)
    os.register_at_fork(after_in_child=_look_away)

    def look_out() -> None:
        while signal.SIGTERM not in os.read(reader, 64):
            pass  # another signal with a handler, not ours
        try:
            stack = interrupted[0] if interrupted else _calls(sys._current_frames()[main])  # noqa: SLF001
            write_json(folder.stack(rank), note(rank, stage(), stack))
        finally:
            os._exit(ENDED)

    def leave(status: int) -> NoReturn:
        if interrupted:
            time.sleep(LOOK_S)  # the lookout ends the process
        os._exit(status)

    threading.Thread(target=look_out, name="lookout", daemon=True).start()
    return leave


def note(rank: int, stage: str, stack: list[str]) -> dict[str, Any]:
    """stack-<r>.json: `FILE:LINE in FUNCTION`, innermost first."""
    return {"rank": rank, "stage": stage, "collective": last_collective(), "stack": stack}


def _calls(frame: FrameType | None) -> list[str]:
    """The stack from a frame out, as `note` has it, without the handler above."""
    calls: list[str] = []
    for each, line in traceback.walk_stack(frame):
        calls.append(f"{each.f_code.co_filename}:{line} in {each.f_code.co_name}")
        if each.f_code.co_filename == __file__:
            calls.clear()
    return calls


def last_collective() -> str | None:
    """The last collective that this rank entered, as torch's flight recorder has it; None where there is none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        c10d = torch._C._distributed_c10d  # noqa: SLF001
        dump = getattr(c10d, "_dump_nccl_trace_json", None) or c10d._dump_fr_trace_json  # noqa: SLF001
        entries = json.loads(dump(includeCollectives=True, onlyActive=False))["entries"]
        last = max(entries, key=lambda entry: entry["record_id"])
        names = torch.distributed.distributed_c10d._world.pg_names  # noqa: SLF001
        size = next((g.size() for g, name in names.items() if name == last["process_group"][0]), None)
        items = sum(_product(shape) for shape in last["input_sizes"])
        among = "" if size is None else f" among {size} ranks"
        return f"{last['profiling_name']} number {last['collective_seq_id']} of {items} values{among}"
    except Exception:  # noqa: BLE001  # private names of torch: whatever fails, the stack is worth more
        return None


def _product(shape: list[int]) -> int:
    result = 1
    for length in shape:
        result *= length
    return result


def _look_away() -> None:
    """In a forked child (a data loader's worker): end on SIGTERM as anybody does."""
    signal.set_wakeup_fd(-1)
    faulthandler.unregister(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _die_with_the_agent() -> None:
    """SIGKILL when the torchrun that started this rank dies, stopped or not: nothing is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
