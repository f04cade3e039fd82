"""Run the host's telemetry beside the workers. The first rank of each host starts and ends it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from scaling.records.paths import LaunchFolder
from scaling.worker.session.beat import BEATS

PERIOD_S = 1.0
END_S = 5


@contextlib.contextmanager
def sampling(folder: LaunchFolder, host: int, *, first_on_host: bool) -> Iterator[None]:
    """Sample while inside. The sampler ends if the rank dies (it sets PR_SET_PDEATHSIG)."""
    if not first_on_host:
        yield
        return
    files = [str(folder.telemetry(host)), str(folder.pulse(host))]
    arguments = [*files, str(host), str(PERIOD_S), str(os.getpid()), BEATS]
    process = subprocess.Popen(
        [sys.executable, "-m", "scaling.hardware.sampler", *arguments],
        stdin=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # a driver may not answer
            process.kill()
