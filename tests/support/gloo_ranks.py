"""Run a script on a few real ranks that find each other through a file, and collect what each prints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import scaling

ROOT = Path(scaling.__file__).parents[1]
PATHS = os.pathsep.join((str(ROOT), str(Path(__file__).parents[1])))
"""Where a script finds the project, and what stands here."""
TIMEOUT_S = 300


def free_address() -> str:
    """An `init_method` without a file, for ranks that through one sometimes never connect (torch 2.13)."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def run_ranks(
    script: Path, count: int, store: Path | str, *arguments: object, timeout_s: float = TIMEOUT_S
) -> list[Any]:
    """`script RANK STORE ARGUMENTS...` on `count` ranks. Returns each rank's last line, which has to be JSON."""
    environment = {**os.environ, "PYTHONPATH": PATHS, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
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


def as_rank(work: Callable[..., Any], *, world_size: int = 2, timeout_s: int = 60) -> None:
    """In such a script: meet the other ranks, and print as JSON what `work(rank, *arguments)` returns."""
    import torch
    import torch.distributed as dist

    rank, store, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    meet = store if "://" in store else f"file://{store}"
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method=meet, rank=int(rank), world_size=world_size, timeout=timeout)
    answer = work(int(rank), *arguments)
    dist.barrier()  # a rank that is still at work may wait for one whose pipe is full
    dist.destroy_process_group()
    print(json.dumps(answer), flush=True)
    time.sleep(0.05)  # a thread of Gloo may still need Python's lock, and torch aborts where Python has ended
