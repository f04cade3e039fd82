"""One rank of the overhead's benchmark: the arms of a step, in blocks of random order."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

LEAD_IN = 3
STAMPS = 256
"""Of a step, at the most."""
ARMS = ("plain", "again", "light", "detailed", "python hook", "profiler")


@dataclass(frozen=True)
class Case:
    """A step of the MLP, and the number of steps in a block."""

    width: int
    batch: int
    steps: int
    bucket_mb: float = 0.0
    parallel: str = "ddp"

    @property
    def arms(self) -> tuple[str, ...]:
        """A hook of one's own is DDP's."""
        return ARMS if self.parallel == "ddp" else tuple(name for name in ARMS if name != "python hook")


CASES = {
    "long": Case(width=1024, batch=192, bucket_mb=2, steps=8),
    "short": Case(width=128, batch=1, bucket_mb=0.03125, steps=100),
    "sharded": Case(width=512, batch=256, steps=16, parallel="fsdp"),
}


def worker(names: Sequence[str], rounds: int, out: Path) -> None:
    """One rank: measure the named cases in turn, in one process group."""
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    times = {name: measure(CASES[name], rounds) for name in names}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Seconds a step of wall and CPU time, by arm and round; and the number of buckets."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile

    from scaling.config.compose import requests
    from scaling.settings import run as spec
    from scaling.settings.plan import Trial
    from scaling.worker.accelerator.accelerator import Precision
    from scaling.worker.accelerator.devices import open_device
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
            f"batch_per_rank={case.batch}",
            f"parallel={case.parallel}",
            *([f"ddp.bucket_cap_mb={case.bucket_mb}"] if case.parallel == "ddp" else []),
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
        elif name in ("light", "detailed"):
            with arms.open("probe", detailed=name == "detailed") as opened, opened.detail.taking() as take:
                yield lambda: (opened.loop.stamped(), take(opened.loop.forward_end_ns))
        else:
            with (
                arms.open("plain") as opened,
                profile(activities=[ProfilerActivity.CPU])
                if name == "profiler"
                else contextlib.nullcontext(),
            ):
                yield opened.loop.plain

    wall: dict[str, list[float]] = {name: [] for name in case.arms}
    cpu: dict[str, list[float]] = {name: [] for name in case.arms}
    rng = random.Random(0)
    for number in range(rounds + 1):  # the first one warms up
        order = list(case.arms)
        rng.shuffle(order)
        for name in order:
            with running(name) as step:
                for _ in range(LEAD_IN):
                    step()
                dist.barrier()
                with device.clock.window(case.steps * STAMPS):
                    begin, used = time.perf_counter(), time.process_time()
                    for _ in range(case.steps):
                        step()
                    if number:
                        wall[name].append((time.perf_counter() - begin) / case.steps)
                        cpu[name].append((time.process_time() - used) / case.steps)
    return {"wall": wall, "cpu": cpu, "buckets": len(arms.buckets)}
