"""`python -m scaling.hardware.sampler FILE PULSE_FILE HOST PERIOD_S PARENT_PID BEATS`: sample a host and its ranks.

The first rank of each host starts one; it ends when that rank ends it or dies. It is a process of its own, so that
reading a driver never holds a lock or takes processor time inside a worker. An own loop has no PULSE_FILE (an empty
text), and is sampled ever more rarely, as its rounds are, since it may train for weeks.
"""

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

from scaling.hardware.devices import Host
from scaling.hardware.nvml import Gpus, open_nvml
from scaling.hardware.telemetry import SCHEMA, record
from scaling.reading import open_to_write

SAMPLES = 100
"""An own loop's next sample comes after this part of the time so far: some 1,000 samples in a week."""


def main(arguments: list[str]) -> None:
    """Write the head, then a sample a period, each line flushed; end on SIGTERM or with the parent."""
    path, pulses = Path(arguments[0]), arguments[1]
    host, period_s, parent = int(arguments[2]), float(arguments[3]), int(arguments[4])
    # SIGTERM is blocked and waited for, since a handler that sets a threading.Event deadlocks where it interrupts the
    # holder of the event's lock. It is blocked before NVML starts threads, so that they block it too.
    # A terminal sends SIGINT to the parent too, which then ends this.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    # PR_SET_PDEATHSIG: the process ends with its parent even while a driver does not answer.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the line above
        return
    if pulses:
        record(Path(pulses), parent, arguments[5])
    nvml = open_nvml()
    gpus, system = (None if nvml is None else Gpus(nvml)), Host()
    began_s = time.monotonic()
    with open_to_write(path) as file:
        _line(file, head(host, gpus, system))
        while signal.sigtimedwait({signal.SIGTERM}, period_s) is None and os.getppid() == parent:
            _line(file, sample(gpus, system))
            if not pulses:
                period_s = max(period_s, (time.monotonic() - began_s) / SAMPLES)


def head(host: int, gpus: Gpus | None, system: Host) -> dict[str, Any]:
    """The first line. The kernel, not NVML, knows each GPU's place on the PCI bus."""
    facts = gpus.facts() if gpus else []
    for gpu in facts:
        gpu["pci_path"] = system.pci_path(gpu["pci"]) if gpu["pci"] else []
        gpu["numa_node"] = system.numa_node(gpu["pci"]) if gpu["pci"] else None
    fields = {"t": "head", "schema": SCHEMA, "host": host, "hostname": platform.node()}
    return {**fields, "gpus": facts, **system.facts()}


def sample(gpus: Gpus | None, system: Host) -> dict[str, Any]:
    """One line of samples."""
    now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    readings = gpus.sample() if gpus else []
    return {"t": "sample", "time_ns": now_ns, "gpus": readings, "system": system.sample()}


def _line(file: Any, value: dict[str, Any]) -> None:
    file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
