"""Run a script on a few real ranks that find each other over TCP, and collect what each answers.

Not through a file: with torch 2.13 ranks that meet there sometimes never connect.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import scaling

ROOT = Path(scaling.__file__).parents[1]
IMPORTS = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
TIMEOUT_S = 300


def free_address() -> str:
    """An `init_method` for ranks of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def run_ranks(script: Path, count: int, *arguments: object, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """`script RANK URL ARGUMENTS...` on `count` ranks. Returns each rank's last line, which has to be JSON."""
    environment = {**os.environ, "PYTHONPATH": IMPORTS, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    address = free_address()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), address, *map(str, arguments)],
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


def join(world: int, timeout_s: float = 60.0) -> int:
    """In a script of `run_ranks`: join its Gloo group, with one thread. Returns the rank."""
    import torch
    import torch.distributed as dist

    rank, address = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world, timeout=limit)
    return rank


def answer(found: Any) -> NoReturn:
    """In a script of `run_ranks`: wait for the others, print what the rank found, and end.

    At once, since threads of Gloo may abort an interpreter that ends in order (torch 2.13).
    """
    import torch.distributed as dist

    dist.barrier()  # before the words: ranks are read one after the other, and a pipe holds 64 KiB
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)
