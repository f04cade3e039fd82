"""What a launch left behind: errors and stacks of ranks, exit codes, logs of torchrun, workers that still run.

NCCL's watchdog ends its process by SIGABRT, so the rank writes no error record, and its log tells the error. It does so
after a collective's timeout and after an error of the device (torch, ProcessGroupNCCL.cpp):

    [rank1]:[E606 ...] [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception:
    [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, ...) ran for ...

Workers are found in /proc. Those on other machines are not seen.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.reading import RefusedError, as_number, log_text, read_json, read_tail
from scaling.records.paths import LaunchFolder

WATCHDOG = "NCCL's watchdog"
"""Used as the type of the error."""
ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT)
TAIL_BYTES = 2**18
"""Its message is near the end of the log, before a C++ stack."""
MESSAGE_MAX = 500

_WATCHDOG_LINE = re.compile(r"watchdog thread terminated with exception:\s*(?:\[Rank \d+\] )?(\S.*)")


def records(
    launch: LaunchFolder, exits: Mapping[int, int], reported: Iterable[int], stage: str
) -> dict[int, dict[str, Any]]:
    """Errors, as in error-<r>.json, of aborted ranks that are not `reported`; `stage` says where they were."""
    errors = {}
    aborted = sorted(rank for rank, code in exits.items() if code in ABORTED and rank not in reported)
    for rank in aborted:
        with contextlib.suppress(OSError, RefusedError):
            text = message(read_tail(launch.log(rank), TAIL_BYTES).decode(errors="replace"))
            if text is not None:
                errors[rank] = {"rank": rank, "type": WATCHDOG, "message": text, "stage": stage}
    return errors


def message(log: str) -> str | None:
    """The watchdog's message in a log; None where there is none."""
    match = _WATCHDOG_LINE.search(log)
    return match[1].strip()[:MESSAGE_MAX] if match else None


Record = Mapping[str, Any]

_ENDED = re.compile(r"rank\s*: (\d{1,9}) \(local_rank: \d+\)\s+exitcode\s*: (-?\d{1,9})")
"""One failure in torchrun's closing list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEvidence:
    """What a launch left behind, by rank."""

    errors: Mapping[int, Record]
    """error-<r>.json in the order of writing, but first the rank that reported to the others first."""
    stacks: Mapping[int, Record]
    """stack-<r>.json, written by ranks that were told to end."""
    exits: Mapping[int, int]
    """Exit codes as torchrun lists them; -n means ended by signal n."""
    started: frozenset[int]
    """Ranks that opened a log."""
    told: frozenset[int] = frozenset()
    """Ranks that this program told to end."""
    stopped: frozenset[int] = frozenset()
    """Ranks that a signal had stopped."""
    missing: frozenset[int] = frozenset()
    """Ranks that ended while others went on."""
    silent_s: float = 0.0
    """How long there was no progress; 0 where the end was seen."""
    last_line: str = ""
    """What the launcher had printed last by then."""


def gather(launch: LaunchFolder, ranks: Mapping[int, int] | None = None) -> LaunchEvidence:
    """Read what a launch left behind. `ranks`: our rank by torchrun's number; what is told of others does not count."""
    ours = ranks or {}
    errors = sorted(_records(launch, "error"), key=lambda item: (not item[1].get("first"), item[0]))
    listed = [(int(rank), int(code)) for text in printed(launch) for rank, code in _ENDED.findall(text)]
    exits = {ours.get(rank, rank): code for rank, code in listed if not ours or rank in ours}
    raised = {record["rank"]: record for _, record in errors}
    stacks = {record["rank"]: record for _, record in _records(launch, "stack")}
    logs = [as_number(path.stem.removeprefix("log-")) for path in launch.path.glob("log-*.txt")]
    stage = next((str(r["stage"]) for r in [*raised.values(), *stacks.values()]), "a collective")
    return LaunchEvidence(
        errors=raised | records(launch, exits, raised, stage),
        stacks=stacks,
        exits=exits,
        started=frozenset(rank for rank in logs if rank is not None),
    )


_TEXTS = {"error": ("type", "message", "stage"), "stack": ("stage",)}
"""What every file of a kind says, beside its rank."""


def _is_record(record: Any, kind: str) -> bool:
    """Whether a file holds what a rank writes (scaling.worker.__main__)."""
    if not isinstance(record, dict) or type(record.get("rank")) is not int:
        return False
    frames = record.get("stack", [])
    texts = [*(record.get(name) for name in _TEXTS[kind]), *(frames if isinstance(frames, list) else [None])]
    return all(isinstance(text, str) for text in texts)


def printed(launch: LaunchFolder) -> list[str]:
    """The output of every torchrun."""
    return [log_text(path) for path in [*sorted(launch.path.glob("torchrun-*.txt")), launch.launcher_log]]


def last_line(launch: LaunchFolder) -> str:
    """The last line that the launcher has printed so far, such as why `srun` waits; empty where there is none."""
    lines = (line.strip() for line in reversed(log_text(launch.launcher_log).splitlines()))
    return next(filter(None, lines), "")


def _records(launch: LaunchFolder, kind: str) -> list[tuple[int, dict[str, Any]]]:
    """(time of writing, record) of every rank that left one."""
    dated = []
    for path in sorted(launch.path.glob(f"{kind}-*.json")):
        with contextlib.suppress(OSError, RefusedError):
            record = read_json(path)
            if _is_record(record, kind):
                dated.append((path.stat().st_mtime_ns, record))
    return sorted(dated, key=lambda item: item[0])


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
    workers = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            # The command lines of torchrun, and of what starts it, have the same words further behind.
            module = words.index("-m", 0, 6) + 1
            if words[module] != "scaling.worker" or words[module + 1 : module + 3] != wanted:
                continue
            environment = (process / "environ").read_bytes().split(b"\0")
            # The process of srun has no RANK: unpacking fails, and it is left out.
            (rank,) = [int(entry[5:]) for entry in environment if entry.startswith(b"RANK=")]
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            pid = int(process.name)
            workers.append(Worker(pid=pid, rank=rank, stopped=state in "Tt", parent=int(parent)))
    return workers


class Roll:
    """The workers that were seen on this machine, and those that have ended since."""

    def __init__(self, launch: LaunchFolder) -> None:
        self._launch = launch
        self._pids: dict[int, int] = {}

    def call(self) -> None:
        """Note the workers that run now. It reads all of /proc, so call it only while nothing is measured."""
        workers = find(self._launch)
        pids = {worker.pid for worker in workers}
        # Children of a rank have its command line, and may end at any time.
        self._pids |= {worker.rank: worker.pid for worker in workers if worker.parent not in pids}

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
