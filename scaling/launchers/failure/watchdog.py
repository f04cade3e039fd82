"""Errors of NCCL's watchdog, read from the rank's log.

The watchdog ends its process by SIGABRT, so the rank writes no error record. It does so after a collective's timeout
and after an error of the device (torch, ProcessGroupNCCL.cpp):

    [rank1]:[E606 ...] [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception:
    [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, ...) ran for ...
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scaling.reading import RefusedError, read_tail
from scaling.records.paths import LaunchFolder

TYPE = "NCCL's watchdog"
"""Used as the type of the error."""
ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT)
TAIL_BYTES = 2**18
"""Its message is near the end of the log, before a C++ stack."""
MESSAGE_MAX = 500

_SAID = re.compile(r"watchdog thread terminated with exception:\s*(?:\[Rank \d+\] )?(\S.*)")


def records(
    launch: LaunchFolder, exits: Mapping[int, int], known: Iterable[int], stage: str
) -> dict[int, dict[str, Any]]:
    """Errors, as in error-<r>.json, of aborted ranks that are not `known`; `stage` says where they were."""
    found = {}
    for rank, code in sorted(exits.items()):
        if code in ABORTED and rank not in known:
            text = message(_tail(launch.log(rank)))
            if text is not None:
                found[rank] = {"rank": rank, "type": TYPE, "message": text, "stage": stage}
    return found


def message(log: str) -> str | None:
    """The watchdog's message in a log; None where there is none."""
    said = _SAID.search(log)
    return said[1].strip()[:MESSAGE_MAX] if said else None


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError, RefusedError):
        return read_tail(path, TAIL_BYTES).decode(errors="replace")
    return ""
