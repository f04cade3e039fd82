"""NCCL's watchdog ends its process by SIGABRT, which leaves no record: what it said in the rank's log instead.

It does so where a collective outlasted the group's timeout, and where the device failed (torch,
ProcessGroupNCCL.cpp):

    [rank1]:[E606 ...] [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception:
    [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, ...) ran for ...
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scaling.store import LaunchFolder

TYPE = "NCCL's watchdog"
"""In place of an exception's type."""
ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT)
TAIL_BYTES = 2**18
"""Its words come last, before a C++ stack."""
MESSAGE_MAX = 500

_SAID = re.compile(r"watchdog thread terminated with exception:\s*(?:\[Rank \d+\] )?(\S.*)")


def records(
    launch: LaunchFolder, exits: Mapping[int, int], known: Iterable[int], stage: str
) -> dict[int, dict[str, Any]]:
    """As error-<r>.json has them, of ranks that were aborted and are not `known`; `stage`: where they were."""
    found = {}
    for rank, code in sorted(exits.items()):
        if code in ABORTED and rank not in known:
            said = last_words(_tail(launch.log(rank)))
            if said is not None:
                found[rank] = {"rank": rank, "type": TYPE, "message": said, "stage": stage}
    return found


def last_words(log: str) -> str | None:
    """Why it ended its process; None where it did not."""
    said = _SAID.search(log)
    return said[1].strip()[:MESSAGE_MAX] if said else None


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")
    return ""
