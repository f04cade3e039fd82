"""`python -m scaling.telemetry FILE HOST PERIOD_S PARENT_PID`: sample this host until the parent ends or says so."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from scaling.telemetry.host import Host
from scaling.telemetry.nvml import Gpus, open_nvml
from scaling.telemetry.records import SCHEMA


def main(arguments: list[str]) -> None:
    """Write the head, then a sample a period, each line flushed; end on SIGTERM or with the parent."""
    path, host, period_s, parent = (
        Path(arguments[0]),
        int(arguments[1]),
        float(arguments[2]),
        int(arguments[3]),
    )
    # Held back and waited for instead of handled: a handler that sets a threading.Event deadlocks where it interrupts
    # whoever holds the event's lock. Before NVML, so that its threads hold it back too.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also where a driver does not answer
    if os.getppid() != parent:  # it ended before it could be watched
        return
    nvml = open_nvml()
    gpus, system = (None if nvml is None else Gpus(nvml)), Host()
    with path.open("w", encoding="utf-8") as file:
        _line(file, head(host, gpus, system))
        while signal.sigtimedwait({signal.SIGTERM}, period_s) is None and os.getppid() == parent:
            _line(file, sample(gpus, system))


def head(host: int, gpus: Gpus | None, system: Host) -> dict[str, Any]:
    """The first line. Each GPU's place on the PCI bus is the kernel's to tell."""
    found = gpus.facts() if gpus else []
    for gpu in found:
        gpu["pci_path"] = system.pci_path(gpu["pci"]) if gpu["pci"] else []
        gpu["numa_node"] = system.numa_node(gpu["pci"]) if gpu["pci"] else None
    fields = {"t": "head", "schema": SCHEMA, "host": host, "hostname": platform.node()}
    return {**fields, "gpus": found, **system.facts()}


def sample(gpus: Gpus | None, system: Host) -> dict[str, Any]:
    """One line."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    return {
        "t": "sample",
        "time_ns": now,
        "gpus": gpus.sample() if gpus else [],
        "system": system.sample(),
    }


def _line(file: Any, value: dict[str, Any]) -> None:
    file.write(json.dumps(value, separators=(",", ":")) + "\n")
    file.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
