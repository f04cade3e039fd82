"""The host's telemetry, beside the workers: started by the first rank of each host, ended with it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from scaling.store import LaunchFolder

PERIOD_S = 1.0
END_S = 5


@contextlib.contextmanager
def sampling(folder: LaunchFolder, host: int, *, first_on_host: bool) -> Iterator[None]:
    """Sample while inside. A rank that dies takes the sampler with it (PR_SET_PDEATHSIG in the sampler)."""
    if not first_on_host:
        yield
        return
    arguments = [str(folder.telemetry(host)), str(host), str(PERIOD_S), str(os.getpid())]
    process = subprocess.Popen(
        [sys.executable, "-m", "scaling.telemetry", *arguments],
        stdin=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # a driver that does not answer
            process.kill()
