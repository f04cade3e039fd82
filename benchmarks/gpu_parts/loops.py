"""Sections that run in this process: steps of one rank with the harness's loop, clock and probes."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from gpu_parts import rows
from gpu_parts.resnet import resnet, workload
from gpu_parts.rows import Row
from torch.nn.parallel import DistributedDataParallel

from scaling.analysis.results import Measured
from scaling.analysis.statistics.rounds import Rounds
from scaling.settings.run import Inject
from scaling.settings.topology import BACKEND_OF
from scaling.worker.accelerator.accelerator import Accelerator, Precision
from scaling.worker.accelerator.clock import now_ns, resolve_collective, sleep
from scaling.worker.accelerator.devices import open_kind
from scaling.worker.data.feed import Feed
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.step import Loop
from scaling.worker.parallel.ddp import bucket_bytes
from scaling.worker.parallel.streams import stream_of
from scaling.worker.parallel.tap import HOST_BACKENDS, Tap, backend_of

TIMEOUT = timedelta(seconds=120)
BATCHES = 2
STEPS, LEAD_IN = 10, 3
"""Steps of a block."""
ARMS = ("plain", "again", "light", "detailed")
ALIKE = 1e-3
"""Tolerance relative to a gradient's norm, since the order of additions in convolutions varies."""
ANCHORED = 20
"""Events recorded over a second, each waited for."""
RECORDED = 2000
"""Stamps in a row, to time one."""
BUSY_S = 2.0
"""Under load before it is read, so that clocks and what sensors average have settled."""


class OneRank:
    """A ResNet on one device, small where a CPU computes it, and groups of this rank alone."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.device = open_kind(kind)
        self.backend = BACKEND_OF[kind]
        torch.manual_seed(0)
        small = kind != "cuda"  # a CPU computes it
        size = {"depths": (1, 1), "width": 8, "classes": 10} if small else {}
        module = resnet(**size).to(self.device.torch_device)  # type: ignore[arg-type]
        self.workload = workload(module, **({"image": 32, "classes": 10} if small else {}))
        self.batch = 4 if small else 64
        self.device_bound = self.batch if small else 256
        """A batch whose work keeps the device busier than the host, as in most trainings."""
        self.precision = Precision("bf16", kind)

    @contextlib.contextmanager
    def group(self, folder: Path) -> Iterator[Any]:
        """A default group of Gloo and a group of the backend over this rank, as in a launch."""
        store = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1, timeout=TIMEOUT)
        try:
            yield dist.new_group([0], backend=self.backend, timeout=TIMEOUT)
        finally:
            dist.destroy_process_group()

    def loop(
        self, module: torch.nn.Module, device: Accelerator | None = None, batch: int | None = None
    ) -> Loop:
        """The harness's loop around a module."""
        work, generator = self.workload, torch.Generator().manual_seed(0)
        batches = [self.device.stage(work.make_batch(batch or self.batch, generator)) for _ in range(BATCHES)]
        return Loop(
            workload=work,
            module=module,
            optimizer=work.optimizer(work.module.parameters()),
            fetch=Feed(batches).fetch,
            accumulation=1,
            device=device or self.device,
            precision=self.precision,
            faults=Faults(Inject(), rank=0, first_on_host=False),
        )

    def wrapped(self, group: Any) -> DistributedDataParallel:
        """DDP with the harness's default settings."""
        return DistributedDataParallel(
            self.workload.module, process_group=group, gradient_as_bucket_view=True
        )


def follow_stream(group: Any, device: Any) -> None:
    """Tell the tap the stream of a communicator; back ends of the host have none."""
    if backend_of(group, device.type) not in HOST_BACKENDS:
        Tap.streams[group.group_name] = stream_of(group, device)


def probe_overhead(solo: OneRank, group: Any, rounds: int) -> list[Row]:
    """Paired blocks in random order: plain, plain again (A/A), phase stamps, stamps of every bucket."""
    ddp, tap = solo.wrapped(group), Tap(solo.device.clock)
    follow_stream(group, solo.device)
    user = solo.loop(ddp, batch=solo.device_bound)

    def buckets() -> None:
        user.stamped()
        tap.take()

    steps: dict[str, Callable[[], Any]] = dict(
        zip(ARMS, (user.plain, user.plain, user.stamped, buckets), strict=True)
    )
    for step in steps.values():
        for _ in range(LEAD_IN):
            step()
    stamps = (STEPS + LEAD_IN) * (user.stamps + 3 * len(bucket_bytes(ddp)))
    times: dict[str, list[float]] = {f"{kind}.{name}": [] for kind in ("wall", "cpu") for name in ARMS}
    rng = random.Random(0)
    for _ in range(rounds):
        for name in rng.sample(ARMS, len(ARMS)):
            with tap.on() if name == ARMS[-1] else contextlib.nullcontext():
                wall, cpu = _block(solo.device, steps[name], stamps)
            times[f"wall.{name}"].append(wall)
            times[f"cpu.{name}"].append(cpu)
    rounds_of_arms = Rounds(
        {name: np.array(values) for name, values in times.items()}, np.zeros(rounds, dtype=np.int64)
    )
    return [*_overhead_rows(rounds_of_arms), *stamp_cost(solo.device)]


def stamp_cost(device: Accelerator) -> list[Row]:
    """The host's time for one stamp, the median of some runs. It counts in full where the host is the slower one."""
    took = []
    for _ in range(9):
        with device.clock.window(RECORDED):
            begin = now_ns()
            for _ in range(RECORDED):
                device.clock.stamp()
            took.append((now_ns() - begin) / RECORDED)
    cost_us = sorted(took)[len(took) // 2] / 1e3
    return [Row(section="probe", what="one stamp", measured=f"{cost_us:.2f} us of the host", value=cost_us)]


def _block(device: Accelerator, step: Callable[[], Any], stamps: int) -> tuple[float, float]:
    """Wall and CPU time of a step, s; the device is idle at its begin and end."""
    with device.clock.window(stamps):
        for _ in range(LEAD_IN):
            step()
        device.synchronize()
        begin, used = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            step()
        device.synchronize()
        return (time.perf_counter() - begin) / STEPS, (time.process_time() - used) / STEPS


def _overhead_rows(measured: Rounds) -> list[Row]:
    def ratio(name: str) -> tuple[float, float, float]:
        return _interval(measured.ratio(lambda m: m[f"wall.{name}"] / m["wall.plain"]))

    def cpu_ms(name: str) -> float:
        return _interval(measured.measure(lambda m: (m[f"cpu.{name}"] - m["cpu.plain"]) * 1e3))[0]

    step = _interval(measured.ratio(lambda m: m["wall.plain"] * 1e3))
    rounds = len(measured.launch)
    return [
        Row(
            section="probe", what="plain step", measured=f"{step[0]:.2f} ms, {rounds} rounds of {STEPS} steps"
        ),
        rows.overhead("phase stamps, every probe step", ratio("light"), ratio("again"), cpu_ms("light")),
        rows.overhead("stamps of every bucket, sampled blocks", ratio("detailed"), None, cpu_ms("detailed")),
    ]


def _interval(number: Measured | None) -> tuple[float, float, float]:
    """(value, low, high). RuntimeError with fewer rounds than an interval needs."""
    if number is None or number.low is None or number.high is None:
        raise RuntimeError("too few rounds for an interval; use --rounds 3 or more")
    return number.value, number.low, number.high


def own_backend(solo: OneRank, group: Any) -> list[Row]:
    """Check the backend over one rank: equal gradients under the tap, stamps in order, memory of the communicator."""
    before = solo.device.foreign_bytes()
    ddp, tap = solo.wrapped(group), Tap(solo.device.clock)
    after = solo.device.foreign_bytes()
    follow_stream(group, solo.device)
    images, labels = solo.device.load(
        solo.device.stage(solo.workload.make_batch(solo.batch, torch.Generator()))
    )
    gradients = []
    for seen in (contextlib.nullcontext(), tap.on()):
        with seen:
            for _ in range(LEAD_IN):
                with solo.device.clock.window(4 * len(bucket_bytes(ddp)) + 2):
                    begin = solo.device.clock.stamp()
                    ddp.zero_grad(set_to_none=True)
                    solo.workload.loss(ddp(images), labels).backward()  # type: ignore[no-untyped-call]
                    calls = [each.row(seq, 1) for seq, each in enumerate(tap.take())]
                    solo.device.synchronize()
                    end = solo.device.clock.stamp()
        gradients.append([p.grad.clone() for p in ddp.parameters() if p.grad is not None])
    first, last = solo.device.clock.resolve([begin, end])
    resolved = [resolve_collective(solo.device.clock, row) for row in calls]
    stamps = [(row.launch_ns, row.start_ns, row.done_ns) for row in resolved]
    slack = solo.device.clock.bound_ns + int(rows.JITTER_US * 1e3)
    in_order = bool(stamps) and all(
        first - slack <= r <= s <= d + slack <= last + 3 * slack for r, s, d in stamps
    )
    alike = all(
        (a - b).norm() <= ALIKE * b.norm() + torch.finfo(b.dtype).tiny
        for a, b in zip(*gradients, strict=True)
    )
    what = f"{solo.backend} at world size 1"
    memory_mib = None if before is None or after is None else (after - before) / 2**20
    memory = "on the host" if memory_mib is None else f"{memory_mib:.0f} MiB for the communicator"
    text = "finite, as without the tap" if alike else "NOT as without the tap"
    return [
        Row(section="ranks", what=f"{what}, gradients", measured=text, bar="alike", met=alike),
        Row(
            section="ranks",
            what=f"{what}, buckets",
            measured=f"{len(stamps)} stamped: ready, launched, done within the step; {memory}",
            bar="all in order",
            met=in_order,
        ),
    ]


def anchored(device: Accelerator) -> list[Row]:
    """Compare events, in host time, with the time at which the host saw them, over a second."""
    tokens, seen = [], []
    with device.clock.window(ANCHORED):
        for _ in range(ANCHORED):
            sleep(1 / ANCHORED)
            tokens.append(device.clock.stamp())
            device.synchronize()
            seen.append(now_ns())
    late = [at - told for at, told in zip(seen, device.clock.resolve(tokens), strict=True)]
    return list(rows.anchors(device.clock.bound_ns, late))


@contextlib.contextmanager
def busy(device: Accelerator, side: int = 4096) -> Iterator[None]:
    """Run matrix products in a thread, so that clocks and link leave their idle state; wait until they have."""
    stop = threading.Event()
    a = torch.randn(side, side, device=device.torch_device)
    torch.mm(a, a)  # opens what the thread needs of the device

    def multiply() -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device.torch_device)
        while not stop.is_set():
            torch.mm(a, a)
            device.synchronize()

    thread = threading.Thread(target=multiply, daemon=True)
    thread.start()
    try:
        time.sleep(BUSY_S if device.type == "cuda" else 0)
        yield
    finally:
        stop.set()
        thread.join()
