"""Hold every arm of the demo's model against a plain loop of torch, in the same minutes.

    python benchmarks/plain_arms.py [--turns 3] [--rate 800mbit]

Two ranks on this machine, without a shaped link or on two emulated hosts behind one of `--rate`. The plain loop is
what anyone would write: the module alone on one rank, on both at once, DDP over one rank, DDP over both; each block
makes its wrapper anew, drops three steps and times six, in random order. `scaling run` and the loop alternate. Wall
time a step, and processor time of the stepping thread, which neighbours on the cores move less. Bar: each arm's
processor time over that of the module alone within 3 % of the loop's, or within the difference between the loop's own
two blocks of the module alone (A/A). The efficiency is printed as both have it, in wall time: one rank alone over both
with DDP.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import defaultdict
from math import isfinite
from pathlib import Path
from statistics import mean, median

import harness
from ending import exit_with
from hosts import run_on_hosts, run_on_loopback

BAR = 0.03
ARMS = ("bare_one", "bare_one again", "bare_all", "ddp_solo", "plain")
DROPPED, TIMED, BLOCKS = 3, 6, 4
SETTINGS = ("experiment=demo", "measure.steps=6", "measure.budget_s=40", "tracking=disabled")

Times = dict[str, list[tuple[float, float]]]
"""By arm: (wall, processor) ms a step of each block."""


def loop(out: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from scaling.worker.accelerator.memory import keep_freed
    from scaling.worker.models import highmem_cnn

    torch.set_num_threads(1)
    keep_freed()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    alone = [dist.new_group([each]) for each in range(dist.get_world_size())][rank]
    torch.manual_seed(0)
    workload = highmem_cnn.build(image=16, channels=29, hidden=58, classes=10)
    inputs, targets = workload.make_batch(116, torch.Generator().manual_seed(1))
    optimizer = workload.optimizer(workload.module.parameters())

    def steps(module: torch.nn.Module, count: int) -> None:
        for _ in range(count):
            workload.loss(module(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    times: Times = defaultdict(list)
    order = random.Random(0)  # the same on both ranks
    for number in range(BLOCKS):
        for arm in order.sample(ARMS, len(ARMS)):
            dist.barrier()
            if arm.startswith("bare_one") and rank != number % 2:
                continue
            module = workload.module
            if arm in ("ddp_solo", "plain"):
                group = alone if arm == "ddp_solo" else None
                module = DistributedDataParallel(
                    module, process_group=group, bucket_cap_mb=0.36, gradient_as_bucket_view=True
                )
            steps(module, DROPPED)
            begin, used = time.perf_counter(), time.thread_time()
            steps(module, TIMED)
            wall, spent = time.perf_counter() - begin, time.thread_time() - used
            times[arm].append((wall / TIMED * 1e3, spent / TIMED * 1e3))
    every: list[Times | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, dict(times))
    if rank == 0:
        out.write_text(
            json.dumps({arm: [b for each in every if each for b in each.get(arm, [])] for arm in ARMS})
        )
    dist.destroy_process_group()


def of_run(folder: Path) -> Times:
    """The blocks of the run's arms, from its rank files. What a new wrapper took to settle is not in them."""
    times: Times = defaultdict(list)
    for path in sorted(folder.glob("launches/*/rank-*.jsonl")):
        for line in path.read_text().splitlines():
            block = json.loads(line)
            if block.get("t") != "block" or block["world_size"] != 2 or block["batch"] != 116:
                continue
            steps = block["steps"] + block["lead_in"] - (block["arm"] in ("ddp_solo", "plain", "probe"))
            wall = block["end_ns"] - block["begin_ns"]
            times[block["arm"]].append((wall / steps / 1e6, block["thread_cpu_ns"] / steps / 1e6))
    return times


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rate")
    parser.add_argument("--loop", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        loop(options.loop)
        return 0
    link = ["topology=local"]
    if options.rate:
        link = ["topology=emulated_nvlink", f"topology.link.rate={options.rate}"]
    loops, runs, efficiencies = defaultdict(list), defaultdict(list), list[str]()
    with tempfile.TemporaryDirectory(prefix="scaling-arms-") as scratch:
        for turn in range(options.turns):
            folder = Path(scratch) / str(turn)
            folder.mkdir()
            script = [__file__, ["--loop", str(folder / "loop.json")]]
            if options.rate:
                run_on_hosts(*script, hosts=2, rate=options.rate, folder=folder)
            else:
                run_on_loopback(*script, ranks=2, folder=folder)
            for arm, blocks in json.loads((folder / "loop.json").read_text()).items():
                loops[arm] += blocks
            analysis = harness.measure(folder / "run", *SETTINGS, *link)
            efficiencies.append(
                "{value:.3f} [{low:.3f}, {high:.3f}]".format(**analysis["points"][-1]["efficiency"])
            )
            for arm, blocks in of_run(folder / "run").items():
                runs[arm] += blocks

    def ms(times: Times, arm: str, which: int) -> float:
        return median(block[which] for block in times[arm]) if times[arm] else float("nan")

    floor = abs(ms(loops, "bare_one again", 1) / ms(loops, "bare_one", 1) - 1)
    print(f"{'ms a step':<16} {'loop wall':>10} {'run wall':>9} {'loop CPU':>9} {'run CPU':>8} {'differ':>7}")
    worst = 0.0
    for arm in (*ARMS, "probe"):
        base = mean([ms(loops, "bare_one", 1), ms(loops, "bare_one again", 1)])
        differ = (
            ms(runs, arm, 1) / ms(runs, "bare_one", 1)
            - ms(loops, arm if arm != "probe" else "plain", 1) / base
        )
        row = [ms(loops, arm, 0), ms(runs, arm, 0), ms(loops, arm, 1), ms(runs, arm, 1)]
        shown = " ".join(f"{value:>9.1f}" if isfinite(value) else "        -" for value in row)
        print(f"{arm:<16} {shown}" + (f" {differ:>+7.1%}" if isfinite(differ) else ""))
        worst = max(worst, abs(differ)) if arm not in ("bare_one again", "probe") else worst
    print(f"the module alone against itself (A/A): {floor:.1%}")
    alone = mean([ms(loops, "bare_one", 0), ms(loops, "bare_one again", 0)])
    print(f"efficiency, loop {alone / ms(loops, 'plain', 0):.3f}; runs {', '.join(efficiencies)}")
    return harness.result("plain_arms", ok=worst <= max(BAR, floor), worst=worst, bar=BAR, floor=floor)


if __name__ == "__main__":
    exit_with(main)
