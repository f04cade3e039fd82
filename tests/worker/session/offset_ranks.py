"""One of four ranks on two hosts, which compares clocks and prints what it notes; host 1's clock is a second ahead."""

from __future__ import annotations

import dataclasses

import torch.distributed as dist
from support.gloo_ranks import answer, join

from scaling.worker.session import control
from scaling.worker.session.control import Control

HOSTS = (0, 0, 1, 1)
AHEAD_NS = 1_000_000_000


def main() -> None:
    rank, store = join(len(HOSTS)), dist.distributed_c10d._get_default_store()
    true_ns = control.now_ns
    control.now_ns = lambda: true_ns() + HOSTS[rank] * AHEAD_NS
    record = control.compare_hosts("begin", rank, HOSTS, Control(dist.PrefixStore("control", store), rank))
    answer(dataclasses.asdict(record))


main()
