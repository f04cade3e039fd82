"""Measure what it takes ranks to join over Gloo: the store's processor time, each rank's, and the bytes on loopback.

Ranks are forked from one process that has imported torch, so that start-up is left out. They join a group of all and a
further one, and have an all-reduce and a barrier in each. What counts is processor time, since ranks share cores here.
Each size runs with a full mesh of connections (up to MESH_MAX ranks) and with connections that are made when they are
first used (TORCH_GLOO_LAZY_INIT). The bar: the store's time lies within a factor of 2 of the range that `scaling plan`
uses (scaling/settings/timeouts.py). Bytes are left out where no network namespace can be made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import harness
from ending import exit_with

from scaling.settings.timeouts import group_s

SIZES = (16, 32, 64, 128, 256, 512)
MESH_MAX = 128
GROUPS = 2
FACTOR = 2.0
LONG = timedelta(seconds=600)
ROW = "ROW"


def serve(asked: int, answers: int) -> NoReturn:
    """Serve the store, and tell this process's CPU time whenever it is asked."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=LONG, wait_for_workers=False)
    os.write(answers, f"{store.port}\n".encode())
    while os.read(asked, 1):
        os.write(answers, f"{time.process_time()}\n".encode())
    os._exit(0)


def join(rank: int, ranks: int, port: int, go: int, rows: int) -> NoReturn:
    """Join as one rank, and write what it took."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, False, timeout=LONG)
    store.add("here", 1)
    os.read(go, 1)
    begin = time.process_time()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=LONG)
    group = dist.new_group(list(range(ranks)), backend="gloo", timeout=LONG)
    for each in (None, group):
        dist.all_reduce(torch.ones(1), group=each)
        dist.barrier(each)
    took, files = time.process_time() - begin, len(list(Path("/proc/self/fd").iterdir()))
    os.write(rows, f"{json.dumps([took, files])}\n".encode())
    store.wait(["bye"], LONG)
    os._exit(0)


def measure(ranks: int) -> NoReturn:
    """Print a row: store's CPU s, a rank's CPU s, wall s, open files of a rank, bytes on the loopback device."""
    import torch.distributed as dist

    asked, answers, go, rows = (os.pipe() for _ in range(4))
    if os.fork() == 0:
        os.close(asked[1])
        serve(asked[0], answers[1])
    replies = os.fdopen(answers[0])
    port = int(replies.readline())
    children = []
    for rank in range(ranks):
        children.append(os.fork())
        if children[-1] == 0:
            os.close(asked[1])
            join(rank, ranks, port, go[0], rows[1])
    store = dist.TCPStore("127.0.0.1", port, None, False, timeout=LONG)
    while store.add("here", 0) < ranks:
        time.sleep(0.05)

    def store_now() -> float:
        os.write(asked[1], b"?")
        return float(replies.readline())

    before, sent, begin = store_now(), loopback_bytes(), time.monotonic()
    os.write(go[1], b"!" * ranks)
    lines = os.fdopen(rows[0])
    times = [json.loads(lines.readline()) for _ in range(ranks)]
    wall, store_s, moved = time.monotonic() - begin, store_now() - before, loopback_bytes() - sent
    store.set("bye", "1")
    for child in children:  # before the store ends with this process
        os.waitpid(child, 0)
    rank_s = sum(took for took, _ in times) / ranks
    print(ROW, json.dumps([store_s, rank_s, wall, max(files for _, files in times), moved]), flush=True)
    os._exit(0)


def loopback_bytes() -> int:
    """Bytes that this network namespace's loopback device has sent."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def row(ranks: int, *, lazy: bool, alone: bool) -> list[float]:
    """Measure one size in a fresh process; `alone`: in a network namespace, whose loopback carries nothing else."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["TORCH_GLOO_LAZY_INIT"] = "1" if lazy else "0"
    cmd = [sys.executable, __file__, "--one", str(ranks)]
    command = ["unshare", "-Urn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *cmd] if alone else cmd
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    for line in done.stdout.splitlines():
        if line.startswith(ROW):
            return list(json.loads(line.removeprefix(ROW)))
    raise SystemExit(f"joining of {ranks} ranks failed\n{done.stderr[-harness.ERROR_CHARS :]}")


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--one", type=int, help="measure one size in this process")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of ranks")
    given = parser.parse_args()
    if given.one is not None:
        measure(given.one)
    alone, ok, worst = harness.has_namespaces(), True, 1.0
    print(
        f"{'ranks':>6} {'connections':<12} {'store s':>8} {'planned s':>14} {'rank ms':>8} {'wall s':>7} {'files':>6} "
        f"{'MB':>8}"
    )
    for lazy in (False, True):
        for ranks in given.sizes:
            if not lazy and ranks > MESH_MAX:
                continue
            store_s, rank_s, wall, files, moved = row(ranks, lazy=lazy, alone=alone)
            low, high = (GROUPS * each for each in group_s(ranks, at_first_use=lazy))
            worst = max(worst, store_s / high, low / store_s)
            ok &= low / FACTOR <= store_s <= high * FACTOR
            print(
                f"{ranks:>6} {'first use' if lazy else 'full mesh':<12} {store_s:8.3f} {low:6.3f} to {high:5.3f} "
                f"{rank_s * 1e3:8.1f} {wall:7.2f} {files:>6.0f} {f'{moved / 1e6:.2f}' if alone else '':>8}",
                flush=True,
            )
    return harness.result("joining", ok=ok, worst_factor=round(worst, 2))


if __name__ == "__main__":
    exit_with(main)
