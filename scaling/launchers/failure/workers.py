"""The workers of a launch on this machine, from /proc. Those on other machines are not seen."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from scaling.records.paths import LaunchFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One rank's process."""

    pid: int
    rank: int
    """As torchrun numbers it."""
    stopped: bool
    parent: int


def find(launch: LaunchFolder) -> list[Worker]:
    """The workers that run now, those of emulated hosts included."""
    wanted = [str(launch.path.parent.parent.absolute()), str(launch.index)]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            module = words.index("-m") + 1  # torchrun's command line has the same words after its own module
            if words[module] != "scaling.worker" or words[module + 1 : module + 3] != wanted:
                continue
            environment = (process / "environ").read_bytes().split(b"\0")
            # The process of srun has no RANK: unpacking fails, and it is left out.
            (rank,) = [int(entry[5:]) for entry in environment if entry.startswith(b"RANK=")]
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            pid = int(process.name)
            found.append(Worker(pid=pid, rank=rank, stopped=state in "Tt", parent=int(parent)))
    return found


class Roll:
    """The workers that were seen on this machine, and those that have ended since."""

    def __init__(self, launch: LaunchFolder) -> None:
        self._launch = launch
        self._pids: dict[int, int] = {}

    def call(self) -> None:
        """Note the workers that run now. It reads all of /proc, so call it only while nothing is measured."""
        found = find(self._launch)
        pids = {worker.pid for worker in found}
        # Children of a rank have its command line, and may end at any time.
        self._pids |= {worker.rank: worker.pid for worker in found if worker.parent not in pids}

    def missing(self) -> frozenset[int]:
        """Ranks, as torchrun numbers them, that ended while others go on; empty where all have ended.

        torchrun ends the others when a worker ends with a status other than 0, but not after a status of 0.
        """
        gone = frozenset(rank for rank, pid in self._pids.items() if not Path(f"/proc/{pid}").exists())
        return gone if len(gone) < len(self._pids) else frozenset()


def end(launch: LaunchFolder, answer_s: float = 3.0) -> list[Worker]:
    """Tell the workers that are left to end, wait up to `answer_s` until they wrote their stacks, and return them."""
    told = find(launch)
    for worker in told:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(worker.pid, signal.SIGTERM)
            os.kill(worker.pid, signal.SIGCONT)  # a stopped process handles SIGTERM only after SIGCONT
    until = time.monotonic() + answer_s
    while time.monotonic() < until and find(launch):
        time.sleep(0.1)
    return told
