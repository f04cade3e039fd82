"""What the probe costs: paired blocks of one training step on two Gloo ranks, interleaved, with an A/A control.

    python benchmarks/overhead.py [--rounds N]

Arms, in random order in every round: plain, plain again (A/A), the light probe (phase stamps), the detailed
probe (per-bucket stamps; sampled blocks only), a plain Python communication hook with a `.then` stamp (what
one would write by hand), and torch.profiler. CPU is that of the whole process, threads of Gloo included.

Bars: the light probe takes <= 0.5 ms of CPU a step, and its wall time is within 1 % + the A/A half-width.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from ending import exit_with
from hosts import run_on_loopback

STEPS, LEAD_IN = 8, 3
CPU_BAR_MS, WALL_BAR = 0.5, 0.01
ARMS = ("plain", "again", "light", "detailed", "python hook", "profiler")


def worker(rounds: int, out: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile

    from scaling import spec
    from scaling.config import requests
    from scaling.plan import Trial
    from scaling.worker.arms import Arms
    from scaling.worker.devices import open_device
    from scaling.worker.feed import open_feed
    from scaling.worker.groups import make_groups
    from scaling.worker.inject import Faults
    from scaling.worker.precision import Precision
    from scaling.worker.workload import build

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    asked = requests(
        "run",
        ["model=mlp", "model.width=1024", "topology.device=cpu", "ddp.bucket_cap_mb=2", "batch_per_rank=192"],
    )
    settings = asked.items[0].spec
    workload = build(settings.model.target, settings.model.args)
    device = open_device(settings, rank=rank, local_rank=rank)
    arms = Arms(
        spec=settings,
        variant=None,
        trial=Trial(world_size=world, hosts=1, batch=192),
        workload=workload,
        groups=make_groups(
            {world: [tuple(range(world))]},
            rank=rank,
            world=world,
            backend="gloo",
            timeout=timedelta(seconds=120),
        ),
        device=device,
        precision=Precision("fp32", "cpu"),
        faults=Faults(spec.Inject(), rank=rank, first_on_host=False),
        feed=lambda batch: open_feed(settings, workload, batch, rank=rank, device=device),
        meet=dist.barrier,
    )
    stamps: list[int] = []

    def hook(_state: Any, bucket: Any) -> Any:
        tensor = bucket.buffer().div_(world)

        def done(future: Any) -> Any:
            stamps.append(time.monotonic_ns())
            return future.value()[0]

        return dist.all_reduce(tensor, async_op=True).get_future().then(done)

    del hook.__annotations__["return"], hook.__annotations__["_state"], hook.__annotations__["bucket"]
    by_hand = DistributedDataParallel(workload.module, bucket_cap_mb=2, gradient_as_bucket_view=True)
    by_hand.register_comm_hook(None, hook)
    hooked = _loop_like(arms, by_hand)

    def plain(steps: int) -> None:
        for _ in range(steps):
            arms.plain.plain()

    def light(steps: int) -> None:
        for _ in range(steps):
            arms.plain.stamped()

    def detailed(steps: int) -> None:
        assert arms.detailed is not None
        with arms.taking("probe", detailed=True) as take:
            assert take is not None
            for _ in range(steps):
                arms.detailed.stamped()
                take(arms.detailed.forward_end_ns)

    def python_hook(steps: int) -> None:
        for _ in range(steps):
            hooked.plain()
        stamps.clear()

    def profiler(steps: int) -> None:
        with profile(activities=[ProfilerActivity.CPU]):
            for _ in range(steps):
                arms.plain.plain()

    run: dict[str, Callable[[int], None]] = dict(
        zip(ARMS, (plain, plain, light, detailed, python_hook, profiler), strict=True)
    )
    for body in run.values():
        body(LEAD_IN)
    wall: dict[str, list[float]] = {name: [] for name in ARMS}
    cpu: dict[str, list[float]] = {name: [] for name in ARMS}
    rng = random.Random(0)
    for _ in range(rounds):
        order = list(ARMS)
        rng.shuffle(order)
        for name in order:
            run[name](LEAD_IN)
            dist.barrier()
            with device.clock.window(STEPS * 64):
                begin, used = time.perf_counter(), time.process_time()
                run[name](STEPS)
                wall[name].append((time.perf_counter() - begin) / STEPS)
                cpu[name].append((time.process_time() - used) / STEPS)
    if rank == 0:
        out.write_text(json.dumps({"wall": wall, "cpu": cpu, "buckets": len(arms.buckets())}))
    dist.barrier()
    dist.destroy_process_group()


def _loop_like(arms: Any, module: Any) -> Any:
    """The plain arm's loop around another wrapper."""
    import copy

    loop = copy.copy(arms.plain)
    loop.module = module
    return loop


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.rounds, options.worker)
        return 0
    import tempfile

    from scaling.analysis.stats import Rounds

    with tempfile.TemporaryDirectory(prefix="scaling-overhead-") as scratch:
        out = Path(scratch) / "times.json"
        arguments = ["--worker", str(out), "--rounds", str(options.rounds)]
        run_on_loopback(__file__, arguments, ranks=2, folder=Path(scratch))
        times = json.loads(out.read_text())
    rounds = Rounds(
        {f"{kind}.{name}": np.array(times[kind][name]) for kind in ("wall", "cpu") for name in ARMS},
        np.zeros(options.rounds, dtype=np.int64),
    )
    found: dict[str, tuple[Any, Any]] = {}
    plain_ms = rounds.measure(lambda m: (m["wall.plain"] + m["wall.again"]) / 2 * 1e3)
    assert plain_ms is not None
    print(
        f"plain step {plain_ms.value:.1f} ms, {times['buckets']} buckets, {options.rounds} rounds of {STEPS} steps"
    )
    print(f"{'arm':<12} {'wall over plain':>28} {'CPU over plain, ms a step':>34}")
    for name in ARMS[1:]:
        ratio = rounds.ratio(lambda m, n=name: m[f"wall.{n}"] / m["wall.plain"])  # type: ignore[misc]
        extra = rounds.measure(lambda m, n=name: (m[f"cpu.{n}"] - m["cpu.plain"]) * 1e3)  # type: ignore[misc]
        assert ratio is not None
        assert extra is not None
        found[name] = (ratio, extra)
        wall_text = f"{ratio.value - 1:+.2%} [{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}]"  # type: ignore[operator]
        print(f"{name:<12} {wall_text:>28} {extra.value:>12.3f} [{extra.low:.3f}, {extra.high:.3f}]")
    floor = found["again"][0].half_width
    ratio, extra = found["light"]
    ok = extra.value <= CPU_BAR_MS and ratio.value - 1 <= WALL_BAR + floor
    print(f"light probe: CPU {extra.value:.3f} ms a step, bar {CPU_BAR_MS}; wall {ratio.value - 1:+.2%}, "
          f"bar {WALL_BAR:.0%} + A/A {floor:.2%}")  # fmt: skip
    print(
        json.dumps(
            {"benchmark": "overhead", "light_cpu_ms": extra.value, "light_wall": ratio.value - 1, "ok": ok}
        )
    )
    return 0 if ok else 1


if __name__ == "__main__":
    exit_with(main)
