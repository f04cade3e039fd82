"""Rank 0 writes the launch's progress, and what the launcher's patience depends on (settings/timeouts.py).

Each rank counts what it has finished in memory that the host's sampler reads (scaling/hardware/telemetry.py), which
the first rank of the host starts and ends. A beat is a step, a collective or a phase that has returned. Counting
writes eight bytes of memory and calls nothing, so that it may stand between timed steps.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from scaling.records.files import write_json
from scaling.records.paths import LaunchFolder

BEATS = "scaling-beats"
"""Name of the memory."""

_count = memoryview(bytearray(8)).cast("q")


def share() -> None:
    """Make the count visible to the sampler. The memory has no name in any folder and ends with this process."""
    global _count  # noqa: PLW0603  one count a process
    memory = os.memfd_create(BEATS)
    os.truncate(memory, 8)
    _count = memoryview(mmap.mmap(memory, 8)).cast("q")


def beat() -> None:
    """Something was finished."""
    _count[0] += 1


COMPILE_S = 150.0
"""Time that compiling a module may take. It is late after ten minutes, as when a model is tried."""


class Progress:
    """Writes progress.json, on rank 0 only; on every rank it is a beat. The launcher watches both for changes.

    Nothing is written while steps are timed.
    """

    def __init__(self, path: Path, *, rank: int) -> None:
        self._path, self._lead = path, rank == 0
        self.step_s: float | None = None
        """A step, as it was timed; None: what runs now has not been timed yet."""

    def __call__(
        self,
        stage: str,
        rounds: float = 0.0,
        elapsed_s: float = 0.0,
        left_s: float | None = None,
        expected_s: float | None = None,
    ) -> None:
        """`expected_s`: about how long until the next update; None: not known."""
        beat()
        if not self._lead:
            return
        progress = {
            "stage": stage,
            "rounds": rounds,
            "elapsed_s": round(elapsed_s, 1),
            "left_s": left_s,
            "step_s": self.step_s,
            "expected_s": expected_s,
        }
        write_json(self._path, progress, indent=None)


PERIOD_S = 1.0
END_S = 5


@contextlib.contextmanager
def sampling(
    folder: LaunchFolder, host: int, *, first_on_host: bool, own_loop: bool = False
) -> Iterator[None]:
    """Sample while inside. The sampler ends if the rank dies (it sets PR_SET_PDEATHSIG).

    `own_loop`: no pulses, and ever more rarely.
    """
    if not first_on_host:
        yield
        return
    files = [str(folder.telemetry(host)), "" if own_loop else str(folder.pulse(host))]
    arguments = [*files, str(host), str(PERIOD_S), str(os.getpid()), BEATS]
    command = [sys.executable, "-m", "scaling.hardware.sampler", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # a driver may not answer
            process.kill()
