"""The doctor's ceilings against independent measurements on the same machine, interleaved in the same run.

    python benchmarks/ceilings.py

Bar: each within 10 %. Independent means another library or another path: NumPy's BLAS for matrix products
where it is as fast (else torch.utils.benchmark over another shape), libc's memcpy for the copies,
torch.utils.benchmark for the launch rates.

Each side measures in turns, `ROUNDS` times, and its best counts: on a machine that is shared both
meet the same disturbances. Exit 1 when the bar is missed, 77 where it cannot be run.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

import torch
from torch.utils import benchmark

from scaling import checkup
from scaling.worker.checks import ceilings
from scaling.worker.devices import CudaDevice, Device

BAR = 0.10
ROUNDS = 5
SECONDS = 0.2


def best_s(work: Callable[[], object], calls: int = 1) -> float:
    """Seconds of one call, the best in SECONDS."""
    work()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best


def timed(statement: str, **names: object) -> float:
    """Seconds of one run of a statement by torch.utils.benchmark, the best of its blocks."""
    timer = benchmark.Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=SECONDS).times)


def product(device: Device, dtype: torch.dtype) -> float:
    """FLOP/s of torch.matmul over a shape that is not the doctor's: a batch against a square."""
    side = 1024 if device.type == "cpu" else 8192
    rows = side * 3 // 2
    a = torch.randn(rows, side, device=device.torch_device).to(dtype)
    b = torch.randn(side, side, device=device.torch_device).to(dtype)
    return 2 * rows * side * side / timed("a @ b", a=a, b=b)


def copy(device: Device, size: int) -> float:
    """bytes/s, read and written."""
    if device.type == "cpu" and torch.get_num_threads() == 1:
        source, target = (ctypes.create_string_buffer(size) for _ in range(2))
        ctypes.memset(source, 1, size)
        return 2 * size / best_s(lambda: ctypes.memmove(target, source, size), max(1, 2**24 // size))
    a = torch.ones(size // 4, device=device.torch_device)
    b = torch.empty_like(a)
    return 2 * size / timed("torch.mul(a, 1.0, out=b)", torch=torch, a=a, b=b)


def launches(device: Device) -> float:
    """Operators a second."""
    x = torch.zeros(1, device=device.torch_device)
    return 64 / timed("for _ in range(64): x.add_(1)", x=x)


def main() -> int:
    """Print the table; 1 when a ceiling is further off than the bar."""
    device: Device = CudaDevice(0) if torch.cuda.is_available() else Device()
    torch.set_num_threads(1)  # what a rank has on a full host; both sides alike
    formats = tuple(f for f in ceilings.available(device) if f in ("fp64", "fp32", "bf16"))
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
        for found in ceilings.measure(device, formats):
            key = (found.name, found.size if found.name == checkup.COPY else 0)
            ours[key] = max(ours.get(key, 0.0), found.best)
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
    met = worst <= BAR
    print(f"ceilings: worst {worst:.1%} off, bar {BAR:.0%}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
