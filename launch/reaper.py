"""Run a command, end as it ends, and leave no process of it.

    python -I -S reaper.py COMMAND ARGUMENTS...

Orphans of the command become children of this process (PR_SET_CHILD_SUBREAPER), whatever session, environment or name
they gave themselves. They get SIGTERM once the command has ended, and SIGKILL `ANSWER_S` later. SIGTERM, SIGINT and
SIGHUP are passed on to the command, which has `END_S` to end; a second one ends everything at once. The command gets
SIGTERM where this process dies, and this process is meant to get one where its caller dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path

END_S, ANSWER_S, GONE_S = 8.0, 3.0, 2.0
"""How long the command may take to end, what it leaves behind, and what was killed."""
LOOK_S = 0.05
"""Between two looks at the processes that are left."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
TOLD = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
LIBC = ctypes.CDLL(None)


def start(command: list[str]) -> int:
    """Start the command in a session of its own; its process number."""
    ours = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() == ours:
            os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def reaped(wanted: int) -> int | None:
    """Collect the children that have ended; the wait status of `wanted` where it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == wanted:
                status = ended[1]
    return status


def descendants() -> list[int]:
    """The processes below this one that have not ended."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent = (process / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(process.name))
    below = [os.getpid()]
    for pid in below:
        below += children.get(pid, ())
    return below[1:]


def send(number: int, processes: list[int]) -> None:
    """Send a signal to each that is still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def end_left(*, at_once: bool) -> None:
    """End what the command left behind."""
    told: set[int] = set()
    answer_by = time.monotonic() + (0 if at_once else ANSWER_S)
    while (left := descendants()) and time.monotonic() < answer_by:
        send(signal.SIGTERM, [process for process in left if process not in told])
        told.update(left)
        if signal.sigtimedwait(TOLD, LOOK_S) is not None:
            break
        reaped(0)
    gone_by = time.monotonic() + GONE_S
    while (left := descendants()) and time.monotonic() < gone_by:
        send(signal.SIGKILL, left)
        time.sleep(LOOK_S)
        reaped(0)


def main() -> int:
    """Run the command of the command line; its exit status."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*TOLD, signal.SIGCHLD})
    command = start(sys.argv[1:])
    kill_at, signals, status = math.inf, 0, None
    while status is None:
        wait_s = min(60.0, max(0.0, kill_at - time.monotonic()))
        received = signal.sigtimedwait({*TOLD, signal.SIGCHLD}, wait_s)
        if received is not None and received.si_signo in TOLD:
            signals += 1
            kill_at = min(kill_at, time.monotonic() + (END_S if signals == 1 else 0))
            send(signal.SIGTERM, [-command] if signals == 1 else [])
        if time.monotonic() >= kill_at:
            send(signal.SIGKILL, descendants())
            kill_at = time.monotonic() + LOOK_S
        status = reaped(command)
    end_left(at_once=signals > 1)
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.kill(os.getpid(), number)
    return 128 + number


if __name__ == "__main__":
    sys.exit(main())
