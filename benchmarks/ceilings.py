"""Compare the doctor's ceilings with independent measurements, and its bounds with those of three known models.

    python benchmarks/ceilings.py

Bar: each ceiling within 10 %, each bound as expected: a chain of large matrix products is compute-bound, one of
elementwise operators on 16 MiB each memory-bound, one of one-element operators launch-bound.

The independent measurements are: torch.utils.benchmark with another shape for the matrix products; on a CPU, NumPy's
elementwise loop for the copies (memcpy would bypass the caches, which no operator of torch does);
torch.utils.benchmark for the launch rate.

Both sides measure in turns, `ROUNDS` times, and the best of each counts, since on a shared machine both meet the same
disturbances. Exit 1 when the bar is missed, 77 where it cannot be run.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch
from ending import exit_with
from torch.utils import benchmark

from scaling.analysis.decompose.roofline import roofline
from scaling.analysis.statistics.rounds import median
from scaling.records import checkup
from scaling.worker.accelerator.accelerator import Accelerator, Precision
from scaling.worker.accelerator.devices import open_kind
from scaling.worker.checks import ceilings
from scaling.worker.checks.steps import Bench
from scaling.worker.data.workload import Workload, sgd

BAR = 0.10
ROUNDS = 20
"""A core runs at half its speed while its sibling is busy, for seconds; with 20 rounds both sides meet it."""
WIDE = 2**22
"""Elements of 16 MiB: twelve of them are in no cache, and none is large enough for the C library to give it back to the
kernel each time, as it does with 64 MiB gradients: mapping those anew took half of such a step."""
REPEATS, REPEAT_S = 7, 0.01


def timed(statement: str, **names: object) -> float:
    """Seconds of one run of a statement by torch.utils.benchmark, the best of repetitions as long as the doctor's."""
    timer = benchmark.Timer(statement, globals=names, num_threads=torch.get_num_threads())
    once = timer.timeit(1).median
    calls = max(1, round(REPEAT_S / once))
    return min(timer.timeit(calls).median for _ in range(REPEATS))


def product(device: Accelerator, dtype: torch.dtype) -> float:
    """FLOP/s of a shape that differs from the doctor's."""
    side = 1024 if device.type == "cpu" else 8192
    rows = side * 3 // 2
    a = torch.randn(rows, side, device=device.torch_device).to(dtype)
    b = torch.randn(side, side, device=device.torch_device).to(dtype)
    c = torch.empty(rows, side, device=device.torch_device, dtype=dtype)
    return 2 * rows * side * side / timed("mm(a, b, out=c)", mm=torch.mm, a=a, b=b, c=c)


def copy(device: Accelerator, size: int) -> float:
    """bytes/s, read and written."""
    if device.type == "cpu":
        # In torch's memory: NumPy asks the kernel for huge pages (madvise), torch's allocator does not.
        source, target = torch.ones(size // 4).numpy(), torch.zeros(size // 4).numpy()
        return 2 * size / timed("negative(a, out=b)", negative=np.negative, a=source, b=target)
    a = torch.ones(size // 4, device=device.torch_device)
    b = torch.empty_like(a)
    return 2 * size / timed("torch.mul(a, 1.0, out=b)", torch=torch, a=a, b=b)


def launches(device: Accelerator) -> float:
    """Operators a second."""
    x = torch.zeros(1, device=device.torch_device)
    return 64 / timed("for _ in range(64): x.add_(1)", x=x)


def chain(width: int, depth: int, layer: Callable[[int], torch.nn.Module]) -> Workload:
    """`depth` layers in a row."""
    module = torch.nn.Sequential(*[layer(width) for _ in range(depth)])
    return Workload(
        module=module,
        make_batch=lambda n, g: (torch.randn(n, width, generator=g), None),
        loss=lambda outputs, _targets: outputs.sum(),
        optimizer=sgd,
    )


class Scale(torch.nn.Module):
    """Every element times one number."""

    def __init__(self, _width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x times the weight."""
        return x * self.weight


def bounds(device: Accelerator) -> bool:
    """Print what binds each model; return whether all are as expected."""
    product, scale = torch.nn.Linear, Scale
    cases = {
        "compute": (chain(1024, 4, lambda width: product(width, width, bias=False)), 1024),
        "memory": (chain(WIDE, 12, scale), 1),
        "launch": (chain(1, 300, scale), 1),
    }
    # The counter knows no FLOP of elementwise products, so one small matrix product is added.
    cases["memory"][0].module.append(product(WIDE, 1))
    cases["launch"][0].module.append(product(1, 1))
    measured = ceilings.measure(device, ("fp32",))
    met = True
    print(f"# {'expected':<10}{'found':<10}{'step ms':>9}{'compute':>10}{'memory':>9}{'launch':>9}{'MFU':>8}")
    for expected, (workload, batch) in cases.items():
        spec = SimpleNamespace(seed=0, accumulation_steps=1, precision="fp32")
        workload.module.to(device.torch_device)
        bench = Bench(
            SimpleNamespace(spec=spec),
            SimpleNamespace(batch=batch),
            workload,
            device,
            Precision("fp32", device.type),
            0,
        )
        work, times = bench.work(), bench.times()
        step = median(times.step_ns)
        assert step is not None
        line = roofline(measured, work, step, rank=0, device=device.type, input_ms=median(times.input_ns))
        assert line is not None
        least = [line.least_ms[name].value for name in ("compute", "memory", "launch")]
        figures = "".join(f"{value:>9.3g}" for value in least)
        print(f"  {expected:<10}{line.bound:<10}{step.value:>9.3g} {figures}{line.mfu.value:>8.1%}")
        met = met and line.bound == expected
    return met


def main() -> int:
    """Print the tables; 1 when a ceiling misses the bar or a bound is not as expected."""
    device = open_kind("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # as a rank on a full host has; the same for both sides
    formats = tuple(f for f in device.formats() if f in ("fp64", "fp32", "bf16"))
    dtypes = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
    sizes = (2**22, 2**28) if device.type == "cpu" else (2**28, 2**30)
    independent: dict[tuple[str, int], Callable[[], float]] = {
        (checkup.MATMUL + name, 0): (lambda d=dtypes[name]: product(device, d)) for name in formats
    }
    independent |= {(checkup.COPY, size): (lambda s=size: copy(device, s)) for size in sizes}
    independent[checkup.LAUNCH, 0] = lambda: launches(device)
    ours: dict[tuple[str, int], float] = {}
    theirs: dict[tuple[str, int], float] = {}
    for _ in range(ROUNDS):
        for ceiling in ceilings.measure(device, formats):
            key = (ceiling.name, ceiling.size if ceiling.name == checkup.COPY else 0)
            ours[key] = max(ours.get(key, 0.0), ceiling.best)
        for key, measure in independent.items():
            theirs[key] = max(theirs.get(key, 0.0), measure())
    print(
        f"# {device.type}, torch {torch.__version__}, {torch.get_num_threads()} thread, best of {ROUNDS} rounds"
    )
    print(f"# {'ceiling':<16}{'size':>12}{'doctor':>14}{'independent':>14}{'ratio':>8}")
    worst = 0.0
    for key in independent:
        ratio = ours[key] / theirs[key]
        worst = max(worst, abs(ratio - 1))
        print(f"  {key[0]:<16}{key[1] or '':>12}{ours[key]:>14.4g}{theirs[key]:>14.4g}{ratio:>8.3f}")
    expected = bounds(device)
    met = worst <= BAR and expected
    as_expected = "as expected" if expected else "NOT as expected"
    print(
        f"ceilings: worst {worst:.1%} off, bar {BAR:.0%}; bounds {as_expected}: {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    exit_with(main)
