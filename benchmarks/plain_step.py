"""Compare a step's buckets with a late rank in a plain loop and in `scaling run`, on the same shaped links.

    python benchmarks/plain_step.py [--rate 500mbit] [--hosts 4] [--late 0,20,30,50]

The hosts are emulated, four by default. A late rank holds up the ring of its first bucket while its peers already send
their second, and the links may then carry less than their rate. This benchmark checks that the time that `scaling run`
reports is the time that any program would see. The plain loop uses nothing of this project: it sleeps for the compute,
gives each bucket to Gloo at the calculated time, and measures from the last rank's launch to the last rank's end.

Bar: time on the link within 3 % of each other. `ideal`: bytes / (rate x 1448/1514). Exit 77 without namespaces.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
from ending import exit_with
from hosts import run_on_hosts

from scaling.units import parse_rate_bit_s

BAR = 0.03
TCP_SHARE = 1448 / 1514
LATE_RANK = 1
COMPUTE_MS = 40
BUCKETS = (2**20, 7 * 2**20)
"""DDP's buckets for 8 MiB in eight equal layers; the first has at least 1 MiB."""
STEPS, LEAD_IN = 30, 5


def step_loop(out: Path, late_ms: float) -> None:
    """One rank's part: launch and end of each bucket of each step, ns of this machine's clock."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensors = [torch.zeros(size // 4) for size in BUCKETS]
    steps = []
    for _ in range(LEAD_IN + STEPS):
        begin = time.monotonic()
        launched: list[int] = []
        ended = [0] * len(BUCKETS)
        works = []
        sent = 0
        for number, tensor in enumerate(tensors):
            sent += BUCKETS[number]
            due_ms = COMPUTE_MS / 3 + COMPUTE_MS * 2 / 3 * sent / sum(BUCKETS)
            due_ms += late_ms if rank == LATE_RANK else 0
            time.sleep(max(0.0, begin + due_ms / 1e3 - time.monotonic()))
            launched.append(time.monotonic_ns())
            work = dist.all_reduce(tensor, async_op=True)

            def note(_: Any, number: int = number, ended: list[int] = ended) -> None:
                ended[number] = time.monotonic_ns()

            work.get_future().add_done_callback(note)
            works.append(work)
        for work in works:
            work.wait()
        steps.append((launched, ended))
    out.with_name(f"step-{rank}.json").write_text(json.dumps(steps[LEAD_IN:]))
    dist.barrier()
    dist.destroy_process_group()


def by_loop(folder: Path, hosts: int, rate: str, late_ms: float) -> float:
    """Mean time of a step that the link is busy, ms: all hosts are namespaces of one machine and share its clock."""
    run_on_hosts(
        __file__, ["--loop", str(folder / "out"), str(late_ms)], hosts=hosts, rate=rate, folder=folder
    )
    ranks = [json.loads((folder / f"step-{rank}.json").read_text()) for rank in range(hosts)]
    busy = []
    for number in range(STEPS):
        end = total = 0
        for bucket in range(len(BUCKETS)):
            begin = max(of[number][0][bucket] for of in ranks)
            done = max(of[number][1][bucket] for of in ranks)
            total += done - max(begin, end)
            end = done
        busy.append(total / 1e6)
    return statistics.fmean(busy)


def by_scaling(folder: Path, hosts: int, rate: str, late_ms: float) -> float:
    """The same by `scaling run`: the sum of its buckets' transfers, ms."""
    overrides = ["topology=emulated_pcie", f"topology.hosts={hosts}", f"topology.link.rate={rate}"]
    overrides += [f"world_sizes=[{hosts}]", "model=synthetic", f"model.param_mb={sum(BUCKETS) // 2**20}"]
    overrides += [f"model.compute_ms={COMPUTE_MS}", "measure=quick", "measure.budget_s=45"]
    overrides += ["tracking=disabled"]
    overrides += [f"inject.rank={LATE_RANK}", f"inject.compute_ms={late_ms}"] if late_ms else []
    points = harness.measure(folder / "run", *overrides)["points"]
    return float(sum(b["transfer_ms"]["value"] for b in points[-1]["comm"]["buckets"]))


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--rate", default="500mbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--late", default="0,20,30,50", help="ms, a row each")
    parser.add_argument("--loop", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        step_loop(Path(options.loop[0]), float(options.loop[1]))
        return 0
    if not harness.has_namespaces():
        return harness.CANNOT
    rate_bit_s = parse_rate_bit_s(options.rate, "--rate")
    ideal_ms = 2 * (options.hosts - 1) / options.hosts * sum(BUCKETS) * 8e3 / (rate_bit_s * TCP_SHARE)
    print(
        f"{'late ms':>8} {'plain loop':>14} {'scaling run':>14} {'difference':>8}   (on the link, {options.rate})"
    )
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="scaling-step-") as scratch:
        for late_ms in map(float, options.late.split(",")):
            plain = []
            folder = Path(scratch) / str(late_ms)
            for turn in ("before", "after"):
                (folder / turn).mkdir(parents=True)
                plain.append(by_loop(folder / turn, options.hosts, options.rate, late_ms))
                if turn == "before":
                    ours = by_scaling(folder, options.hosts, options.rate, late_ms)
            loop = statistics.fmean(plain)
            worst = max(worst, abs(ours / loop - 1))
            print(
                f"{late_ms:>8g} {loop:>6.1f} {loop / ideal_ms - 1:>+6.1%} {ours:>7.1f} {ours / ideal_ms - 1:>+6.1%} "
                f"{ours / loop - 1:>+8.1%}",
                flush=True,
            )
    print(f"ideal {ideal_ms:.1f} ms; percentages beside a time are over it")
    ok = worst <= BAR
    return harness.result("plain_step", ok=ok, worst=worst, bar=BAR)


if __name__ == "__main__":
    exit_with(main)
