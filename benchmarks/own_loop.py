"""Compare the probe in a user's loop with `scaling run` on links of known speed, and measure its cost.

    python benchmarks/own_loop.py [--only accuracy|overhead] [--rates 200,800] [--turns N] [--rounds N] [--pairs N]

Accuracy: two emulated hosts, 200 and 800 Mbit/s, with and without 40 ms of lateness in rank 1. `scaling run`
measures the synthetic model; a plain loop trains the same model with a Probe; in turns. Bars: exposed
transfer, bandwidth and the cost of the late rank within 5 % of what `scaling run` gives, exposed skew within 5 % or
1 % of the step, the same rank named. The intervals of both are printed. Exit 77 without namespaces.

Overhead: two Gloo ranks and a step of some 50 ms. Paired blocks: no probe, no probe again (A/A), probe on and probe
off (SCALING_PROBE=0) in random order in every round of one launch. The same again with a batch of 1: the probe's work
in a step is the same, and the variation of the step's CPU time does not hide it. Paired processes: one launch each.
CPU time is that of the whole process. Bars: on, <= 0.5 ms of CPU a step (of the short step) and wall <= 1 % + the A/A
half-width; off, no difference beyond the A/A half-width. The probe's work at its start (hooks, and the head of its
file, which describes the loop and the machine) falls into the lead-in and is printed separately.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
from ending import exit_with
from hosts import run_on_hosts, run_on_loopback

BAR, STEP_SHARE = 0.05, 0.01
CPU_BAR_MS, WALL_BAR = 0.5, 0.01
LATE_MS, COMPUTE_MS = 40.0, 40
PARAM_MB = {200: 4, 800: 12}
STEPS = 155
BLOCK_STEPS, LEAD_IN = 40, 25
"""The probe starts its file after its first round: 5 steps of warm-up and 10 of the round."""
BATCH, SHORT_BATCH = 192, 1
CONDITIONS = ("absent", "again", "on", "off")


def accuracy_worker(run_dir: Path, param_mb: int, late_ms: float) -> None:
    """A plain loop that uses only the model and the probe of the harness."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from scaling import Probe
    from scaling.worker.data.workload import build

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    args = {"param_mb": param_mb, "layers": 8, "compute_ms": COMPUTE_MS, "reference_batch": 32}
    workload = build("scaling.worker.models.synthetic.build", args)
    ddp = DistributedDataParallel(workload.module, gradient_as_bucket_view=True)
    optimizer = workload.optimizer(ddp.parameters())
    inputs, targets = workload.make_batch(32, torch.Generator().manual_seed(dist.get_rank()))
    late = late_ms / 1e3 if dist.get_rank() == 1 else 0.0
    with Probe(ddp, run_dir=run_dir) as probe:
        for _ in range(STEPS):
            with probe.step():
                time.sleep(late)
                workload.loss(ddp(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


def own_run(folder: Path, rate_mbit: int, late_ms: float) -> dict[str, Any]:
    run = folder / "own"
    loop = ["--accuracy-worker", str(run), "--param-mb", str(PARAM_MB[rate_mbit]), "--late-ms", str(late_ms)]
    run_on_hosts(__file__, loop, hosts=2, rate=f"{rate_mbit}mbit", folder=folder)
    return dict(harness.analyze(run)["points"][0])


def scaling_run(folder: Path, rate_mbit: int, late_ms: float) -> dict[str, Any]:
    overrides = ["topology=emulated_pcie", f"topology.link.rate={rate_mbit}mbit", "world_sizes=[2]"]
    overrides += [
        "model=synthetic",
        f"model.param_mb={PARAM_MB[rate_mbit]}",
        f"model.compute_ms={COMPUTE_MS}",
    ]
    overrides += ["batch_per_rank=32", "measure=quick", "measure.budget_s=28", "measure.rounds_max=8"]
    overrides += ["tracking=disabled"]
    if late_ms:
        overrides += ["inject.rank=1", f"inject.compute_ms={late_ms}"]
    return dict(harness.measure(folder / "run", *overrides)["points"][-1])


QUANTITIES = ("transfer ms", "skew ms", "busbw Gbit/s", "late rank ms")


def of(point: dict[str, Any]) -> dict[str, dict[str, Any] | None]:
    late = point["straggler"]
    parts = point["parts_ms"]
    values = (parts["exposed_transfer"], parts["exposed_skew"], point["comm"]["busbw_gbit_s"])
    return dict(zip(QUANTITIES, (*values, late["cost_ms"] if late else None), strict=True))


def accuracy(rates: list[int], turns: int) -> bool:
    ok = True
    print(f"{'Mbit':>5} {'late':>5} {'quantity':<13} {'scaling run':>20} {'own loop':>20} {'difference':>11}")
    for rate in rates:
        for late_ms in (0.0, LATE_MS):
            theirs: list[dict[str, Any]] = []
            ours: list[dict[str, Any]] = []
            for _turn in range(turns):
                with tempfile.TemporaryDirectory(prefix="scaling-own-") as scratch:
                    theirs.append(scaling_run(Path(scratch), rate, late_ms))
                    ours.append(own_run(Path(scratch), rate, late_ms))
            named = [[p["straggler"] and p["straggler"]["rank"] for p in points] for points in (theirs, ours)]
            expected = [[1 if late_ms else None] * turns] * 2
            step_ms = sum(p["step_ms"]["value"] for p in theirs) / turns
            ok &= named == expected
            for quantity in QUANTITIES:
                a, b = ([of(p)[quantity] for p in points] for points in (theirs, ours))
                if None in a + b:
                    lacks = bool(late_ms) or quantity != QUANTITIES[-1]
                    ok &= not lacks
                    if lacks:
                        print(f"{rate:>5} {late_ms:>5g} {quantity:<13} not measured  MISSED")
                    continue
                x, y = (sum(m["value"] for m in measured) / turns for measured in (a, b))  # type: ignore[index]
                apart = y / x - 1 if x else 0.0
                fine = abs(y - x) <= BAR * abs(x) or (
                    quantity == "skew ms" and abs(y - x) <= STEP_SHARE * step_ms
                )
                ok &= fine
                print(
                    f"{rate:>5} {late_ms:>5g} {quantity:<13} {text(x, a):>20} {text(y, b):>20} {apart:>+11.1%}"
                    f"{'' if fine else '  MISSED'}"
                )
            print(f"{rate:>5} {late_ms:>5g} late rank     {named[0]!s:>20} {named[1]!s:>20}", flush=True)
    return ok


def text(value: float, measured: list[Any]) -> str:
    half = max((m["high"] - m["low"]) / 2 for m in measured if m["low"] is not None)
    return f"{value:.4g} ±{half:.2g}"


def overhead_worker(out: Path, rounds: int, only: str, batch: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from scaling import Probe
    from scaling.worker.data.workload import build

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    args = {"features": 256, "width": 1024, "depth": 4, "classes": 10}
    workload = build("scaling.worker.models.mlp.build", args)
    ddp = DistributedDataParallel(workload.module, bucket_cap_mb=2, gradient_as_bucket_view=True)
    optimizer = workload.optimizer(ddp.parameters())
    inputs, targets = workload.make_batch(batch, torch.Generator().manual_seed(rank))

    def steps(count: int, around: Any) -> None:
        for _ in range(count):
            with around():
                workload.loss(ddp(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()

    def block(condition: str, index: int) -> tuple[float, float, float]:
        os.environ["SCALING_PROBE"] = "0" if condition == "off" else "1"
        once = time.process_time()
        with_probe = condition in ("on", "off")
        probe = Probe(ddp, run_dir=out.parent / f"{condition}-{index}") if with_probe else None
        with probe or contextlib.nullcontext():
            around = probe.step if probe else contextlib.nullcontext
            steps(LEAD_IN, around)
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            steps(BLOCK_STEPS, around)
            return (
                (time.perf_counter() - begin) / BLOCK_STEPS,
                (time.process_time() - used) / BLOCK_STEPS,
                used - once,
            )

    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CONDITIONS}
    steps(LEAD_IN, contextlib.nullcontext)
    rng = random.Random(0)
    for index in range(rounds):
        order = [only] if only else list(CONDITIONS)
        rng.shuffle(order)
        for condition in order:
            times[condition].append(block(condition, index))
    if rank == 0:
        out.write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


def overhead_launch(rounds: int, only: str = "", batch: int = BATCH) -> dict[str, list[list[float]]]:
    with tempfile.TemporaryDirectory(prefix="scaling-own-") as scratch:
        out = Path(scratch) / "times.json"
        arguments = ["--overhead-worker", str(out), "--rounds", str(rounds), "--condition", only]
        run_on_loopback(__file__, [*arguments, "--batch", str(batch)], ranks=2, folder=Path(scratch))
        return json.loads(out.read_text())  # type: ignore[no-any-return]


def judge(title: str, times: dict[str, list[list[float]]]) -> tuple[bool, bool]:
    """Print a table; return whether wall and CPU time meet their bars."""
    import numpy as np

    from scaling.analysis.statistics.rounds import Rounds

    count = len(times["on"])
    values = {
        f"{kind}.{name}": np.array([pair[i] for pair in times[name]])
        for i, kind in enumerate(("wall", "cpu", "once"))
        for name in CONDITIONS
    }
    rounds = Rounds(values, np.zeros(count, dtype=np.int64))
    step = rounds.measure(lambda m: m["wall.absent"] * 1e3)
    assert step is not None
    print(f"{title}: {count} of each, {BLOCK_STEPS} steps of {step.value:.1f} ms")
    result = {}
    for name in CONDITIONS[1:]:
        ratio = rounds.ratio(lambda m, n=name: m[f"wall.{n}"] / m["wall.absent"])  # type: ignore[misc]
        extra = rounds.measure(lambda m, n=name: (m[f"cpu.{n}"] - m["cpu.absent"]) * 1e3)  # type: ignore[misc]
        assert ratio is not None
        assert extra is not None
        result[name] = ratio, extra
        print(
            f"  {name:<7} wall {ratio.value - 1:+.2%} [{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}]   "  # type: ignore[operator]
            f"CPU {extra.value:+.3f} ms a step [{extra.low:+.3f}, {extra.high:+.3f}]",
            flush=True,
        )
    once = rounds.measure(lambda m: (m["once.on"] - m["once.absent"]) * 1e3)
    assert once is not None
    print(f"  on      CPU {once.value:+.0f} ms once [{once.low:+.0f}, {once.high:+.0f}]", flush=True)
    (again_wall, again_cpu), on, off = result["again"], result["on"], result["off"]
    floor, cpu_floor = again_wall.half_width, again_cpu.half_width
    wall = on[0].value - 1 <= WALL_BAR + floor and abs(off[0].value - 1) <= floor
    cpu = on[1].value <= CPU_BAR_MS and abs(off[1].value) <= cpu_floor
    return bool(wall), bool(cpu)


def overhead(rounds: int, pairs: int) -> bool:
    wall, _ = judge("paired blocks", overhead_launch(rounds))
    _, cpu = judge("paired blocks, a short step", overhead_launch(2 * rounds, batch=SHORT_BATCH))
    if pairs:
        times: dict[str, list[list[float]]] = {name: [] for name in CONDITIONS}
        rng = random.Random(1)
        for _ in range(pairs):
            order = list(CONDITIONS)
            rng.shuffle(order)
            for name in order:
                blocks = overhead_launch(2, name)[name]
                times[name].append([sum(column) / len(column) for column in zip(*blocks, strict=True)])
        judge("paired processes", times)
    return wall and cpu


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--only", choices=("accuracy", "overhead"))
    parser.add_argument("--rates", default="200,800", help="Mbit/s, of 200 and 800")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--accuracy-worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--overhead-worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--param-mb", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--late-ms", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--condition", default="", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=BATCH, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.accuracy_worker:
        accuracy_worker(options.accuracy_worker, options.param_mb, options.late_ms)
        return 0
    if options.overhead_worker:
        overhead_worker(options.overhead_worker, options.rounds, options.condition, options.batch)
        return 0
    if not harness.has_namespaces():
        return harness.CANNOT
    cheap = options.only == "accuracy" or overhead(options.rounds, options.pairs)
    close = options.only == "overhead" or accuracy(
        [int(rate) for rate in options.rates.split(",")], options.turns
    )
    return harness.result("own_loop", ok=close and cheap, accuracy=close, overhead=cheap)


if __name__ == "__main__":
    exit_with(main)
