"""One of four ranks on two hosts, which compares clocks and prints what it notes; host 1's clock is a second ahead."""

from __future__ import annotations

import dataclasses
import json
import sys

import torch.distributed as dist

from scaling.worker.session import control
from scaling.worker.session.control import Control

HOSTS = (0, 0, 1, 1)
AHEAD_NS = 1_000_000_000


def main() -> None:
    rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], len(HOSTS))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(HOSTS))
    true_ns = control.now_ns
    control.now_ns = lambda: true_ns() + HOSTS[rank] * AHEAD_NS
    record = control.compare_hosts("begin", rank, HOSTS, Control(dist.PrefixStore("control", store), rank))
    print(json.dumps(dataclasses.asdict(record)))
    dist.barrier()
    dist.destroy_process_group()


main()
