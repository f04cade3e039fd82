"""Run a script on a few real ranks that find each other through a file, and collect what each prints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import scaling

ROOT = Path(scaling.__file__).parents[1]
TIMEOUT_S = 300


def free_address() -> str:
    """An `init_method` without a file, for ranks that through one sometimes never connect (torch 2.13)."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def run_ranks(
    script: Path, count: int, store: Path | str, *arguments: object, timeout_s: float = TIMEOUT_S
) -> list[Any]:
    """`script RANK STORE ARGUMENTS...` on `count` ranks. Returns each rank's last line, which has to be JSON."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(store), *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        ended = [process.communicate(timeout=timeout_s) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, (_, errors) in zip(ranks, ended, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]
