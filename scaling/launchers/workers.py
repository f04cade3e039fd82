"""The workers of a launch that run on this machine, as the kernel lists them. None are seen on other machines."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from scaling.store import LaunchFolder

ANSWER_S = 3.0
"""To write down where it is, once a rank is told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One rank's process."""

    pid: int
    rank: int
    """As torchrun numbers it."""
    stopped: bool
    parent: int


def find(launch: LaunchFolder) -> list[Worker]:
    """Those that are there, emulated hosts' too: their processes are in this machine's list as well."""
    wanted = [str(launch.path.parent.parent.absolute()), str(launch.index)]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            module = words.index("-m") + 1  # torchrun's own line has the same words behind its own module
            if words[module] != "scaling.worker" or words[module + 1 : module + 3] != wanted:
                continue
            environment = (process / "environ").read_bytes().split(b"\0")
            (rank,) = [int(entry[5:]) for entry in environment if entry.startswith(b"RANK=")]  # srun has none
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            pid = int(process.name)
            found.append(Worker(pid=pid, rank=rank, stopped=state in "Tt", parent=int(parent)))
    return found


class Roll:
    """The workers that were seen on this machine, and which of them are not there any more."""

    def __init__(self, launch: LaunchFolder) -> None:
        self._launch = launch
        self._pids: dict[int, int] = {}

    def call(self) -> None:
        """Note who is there now. It reads the whole list of processes: not while anything is measured."""
        found = find(self._launch)
        pids = {
            worker.pid for worker in found
        }  # what a rank forks has its words too, and may end when it likes
        self._pids |= {worker.rank: worker.pid for worker in found if worker.parent not in pids}

    def missing(self) -> frozenset[int]:
        """Ranks, as torchrun numbers them, that ended while others go on; none where all have ended.

        A worker that ends with a status other than 0 has torchrun end the others; one that ends with 0 has not.
        """
        gone = frozenset(rank for rank, pid in self._pids.items() if not Path(f"/proc/{pid}").exists())
        return gone if len(gone) < len(self._pids) else frozenset()


def end(launch: LaunchFolder) -> list[Worker]:
    """Tell those that are left to end, and give them the time to write down where they are. Returns them."""
    told = find(launch)
    for worker in told:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(worker.pid, signal.SIGTERM)
            os.kill(worker.pid, signal.SIGCONT)  # one that is stopped takes no other signal
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until and find(launch):
        time.sleep(0.1)
    return told
