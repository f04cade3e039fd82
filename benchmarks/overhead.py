"""Measure the cost of the probe: paired, interleaved blocks of steps on two Gloo ranks, with an A/A control.

    python benchmarks/overhead.py [--rounds N]

Arms, in random order in every round: plain, plain again (A/A), the light probe (phase stamps), the detailed
probe (per-bucket stamps; sampled blocks only), a plain Python communication hook with a `.then` stamp (as
one would write by hand), and torch.profiler. CPU time is that of the whole process, with Gloo's threads.

Two models with the same number of buckets: one with a long step, for the wall time, and one with a short step, for the
CPU time. The probe's work in a step is the same in both, but the CPU time of a long step varies by more than the bar.

Bars: the light probe takes <= 0.5 ms of CPU a step (of the short one), and its wall time is within 1 % + the A/A
half-width (of the long one).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import harness
import numpy as np
from ending import exit_with
from hosts import run_on_loopback

LEAD_IN = 3
CPU_BAR_MS, WALL_BAR = 0.5, 0.01
ARMS = ("plain", "again", "light", "detailed", "python hook", "profiler")


@dataclass(frozen=True)
class Case:
    """A step of the MLP, and the number of steps in a block."""

    width: int
    batch: int
    bucket_mb: float
    steps: int


CASES = {
    "long": Case(width=1024, batch=192, bucket_mb=2, steps=8),
    "short": Case(width=128, batch=1, bucket_mb=0.03125, steps=100),
}


def worker(rounds: int, out: Path) -> None:
    """One rank: measure every case in turn, in one process group."""
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = {name: measure(case, rounds) for name, case in CASES.items()}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Seconds a step of wall and CPU time, by arm and round; and the number of buckets."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile

    from scaling.config.compose import requests
    from scaling.spec import run as spec
    from scaling.spec.plan import Trial
    from scaling.worker.accelerator.devices import open_device
    from scaling.worker.accelerator.precision import Precision
    from scaling.worker.data.feed import open_feed
    from scaling.worker.data.workload import build
    from scaling.worker.measure.arms import Arms
    from scaling.worker.measure.inject import Faults
    from scaling.worker.measure.step import Loop
    from scaling.worker.parallel.groups import make_groups

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    asked = requests(
        "run",
        [
            "model=mlp",
            f"model.width={case.width}",
            "topology.device=cpu",
            f"ddp.bucket_cap_mb={case.bucket_mb}",
            f"batch_per_rank={case.batch}",
        ],
    )
    settings = asked.items[0].spec
    workload = build(settings.model.target, settings.model.args)
    device = open_device(settings, rank=rank, local_rank=rank)
    precision, faults = Precision("fp32", "cpu"), Faults(spec.Inject(), rank=rank, first_on_host=False)
    optimizer = workload.optimizer(workload.module.parameters())
    arms = Arms(
        spec=settings,
        variant=None,
        trial=Trial(world_size=world, hosts=1, batch=case.batch),
        workload=workload,
        optimizer=optimizer,
        groups=make_groups(
            {world: [tuple(range(world))]},
            rank=rank,
            world=world,
            backend="gloo",
            timeout=timedelta(seconds=120),
        ),
        device=device,
        precision=precision,
        faults=faults,
        feed=lambda batch: open_feed(settings, workload, batch, rank=rank, device=device),
    )
    dist.barrier()
    stamps: list[int] = []

    def hook(_state: Any, bucket: Any) -> Any:
        tensor = bucket.buffer().div_(world)

        def done(future: Any) -> Any:
            stamps.append(time.monotonic_ns())
            return future.value()[0]

        return dist.all_reduce(tensor, async_op=True).get_future().then(done)

    del hook.__annotations__["return"], hook.__annotations__["_state"], hook.__annotations__["bucket"]

    @contextlib.contextmanager
    def by_hand() -> Iterator[Loop]:
        """The same loop around a wrapper with a hook of one's own."""
        module = DistributedDataParallel(
            workload.module, bucket_cap_mb=case.bucket_mb, gradient_as_bucket_view=True
        )
        module.register_comm_hook(None, hook)
        loop = Loop(
            workload=workload,
            module=module,
            optimizer=optimizer,
            fetch=arms.feed("plain").fetch,
            accumulation=1,
            device=device,
            precision=precision,
            faults=faults,
        )
        del module
        yield loop
        loop.release()
        stamps.clear()

    @contextlib.contextmanager
    def running(name: str) -> Iterator[Callable[[], object]]:
        """Inside, the yielded function runs a step of an arm."""
        if name == "python hook":
            with by_hand() as loop:
                yield loop.plain
        elif name == "detailed":
            with arms.open("probe", detailed=True) as opened:
                taken, loop = opened.detailed, opened.loop
                assert taken is not None
                yield lambda: (loop.stamped(), taken.take(loop.forward_end_ns))
        else:
            with (
                arms.open("plain") as opened,
                profile(activities=[ProfilerActivity.CPU])
                if name == "profiler"
                else contextlib.nullcontext(),
            ):
                yield opened.loop.stamped if name == "light" else opened.loop.plain

    wall: dict[str, list[float]] = {name: [] for name in ARMS}
    cpu: dict[str, list[float]] = {name: [] for name in ARMS}
    rng = random.Random(0)
    for number in range(rounds + 1):  # the first one warms up
        order = list(ARMS)
        rng.shuffle(order)
        for name in order:
            with running(name) as step:
                for _ in range(LEAD_IN):
                    step()
                dist.barrier()
                with device.clock.window(case.steps * 64):
                    begin, used = time.perf_counter(), time.process_time()
                    for _ in range(case.steps):
                        step()
                    if number:
                        wall[name].append((time.perf_counter() - begin) / case.steps)
                        cpu[name].append((time.process_time() - used) / case.steps)
    return {"wall": wall, "cpu": cpu, "buckets": len(arms.buckets())}


def table(name: str, times: dict[str, Any], count: int) -> dict[str, tuple[Any, Any]]:
    """Print a case: for each arm, its wall time over plain and its extra CPU time in ms a step."""
    from scaling.analysis.statistics.rounds import Rounds

    rounds = Rounds(
        {f"{kind}.{arm}": np.array(times[kind][arm]) for kind in ("wall", "cpu") for arm in ARMS},
        np.zeros(count, dtype=np.int64),
    )
    plain_ms = rounds.measure(lambda m: (m["wall.plain"] + m["wall.again"]) / 2 * 1e3)
    assert plain_ms is not None
    print(f"{name} step: {plain_ms.value:.1f} ms, {times['buckets']} buckets, "
          f"{count} rounds of {CASES[name].steps} steps")  # fmt: skip
    print(f"{'arm':<12} {'wall over plain':>28} {'CPU over plain, ms a step':>34}")
    found: dict[str, tuple[Any, Any]] = {}
    for arm in ARMS[1:]:
        ratio = rounds.ratio(lambda m, n=arm: m[f"wall.{n}"] / m["wall.plain"])  # type: ignore[misc]
        extra = rounds.measure(lambda m, n=arm: (m[f"cpu.{n}"] - m["cpu.plain"]) * 1e3)  # type: ignore[misc]
        assert ratio is not None
        assert extra is not None
        found[arm] = (ratio, extra)
        wall_text = f"{ratio.value - 1:+.2%} [{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}]"  # type: ignore[operator]
        print(f"{arm:<12} {wall_text:>28} {extra.value:>12.3f} [{extra.low:.3f}, {extra.high:.3f}]")
    return found


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

    with tempfile.TemporaryDirectory(prefix="scaling-overhead-") as scratch:
        out = Path(scratch) / "times.json"
        arguments = ["--worker", str(out), "--rounds", str(options.rounds)]
        run_on_loopback(__file__, arguments, ranks=2, folder=Path(scratch))
        times = json.loads(out.read_text())
    found = {name: table(name, times[name], options.rounds) for name in CASES}
    floor = found["long"]["again"][0].half_width
    ratio, extra = found["long"]["light"][0], found["short"]["light"][1]
    ok = extra.value <= CPU_BAR_MS and ratio.value - 1 <= WALL_BAR + floor
    print(f"light probe: CPU {extra.value:.3f} ms a short step, bar {CPU_BAR_MS}; "
          f"wall of a long one {ratio.value - 1:+.2%}, bar {WALL_BAR:.0%} + A/A {floor:.2%}")  # fmt: skip
    return harness.result("overhead", ok=ok, light_cpu_ms=extra.value, light_wall=ratio.value - 1)


if __name__ == "__main__":
    exit_with(main)
