"""The best this device does, kind by kind: matrix products, copies, transfers, launches. Nothing from data sheets.

Each rate is the best of several repetitions of at least `REPEAT_NS`, over a few sizes: whatever
disturbs a repetition only slows it, as in STREAM (McCalpin 1995).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from scaling import checkup
from scaling.checkup import Ceiling
from scaling.worker.clock import now_ns
from scaling.worker.devices import Device
from scaling.worker.precision import matmul_tf32

REPEATS = 7
REPEAT_NS = 10_000_000
CHAIN = 64
"""Operators of the launch chains: enough to hide the loop around them."""

_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_SIDES = {"cpu": (512, 1024), "cuda": (2048, 4096, 8192)}
_COPIES = {"cpu": (2**20, 2**22, 2**24, 2**26, 2**28), "cuda": (2**22, 2**24, 2**26, 2**28, 2**30)}
"""Bytes of the buffer that is read, ascending; an equal one is written."""
_TRANSFER = 2**26


def measure(device: Device, precisions: tuple[str, ...]) -> tuple[Ceiling, ...]:
    """All ceilings of this rank's device; matrix products in the given number formats."""
    found = [_matmul(device, name) for name in precisions]
    return tuple(c for c in (*found, *_copies(device), *_transfers(device), *_launches(device)) if c)


def _matmul(device: Device, precision: str) -> Ceiling | None:
    dtype, where = _DTYPES[precision], device.torch_device
    before = matmul_tf32()
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    best = None
    try:
        for side in _SIDES[device.type]:
            a, b = (torch.randn(side, side, device=where).to(dtype) for _ in range(2))
            out = torch.empty_like(a)
            work = 2 * side**3
            found = _best(device, lambda a=a, b=b, out=out: torch.mm(a, b, out=out))  # type: ignore[misc]
            best = _better(best, checkup.MATMUL + precision, "FLOP/s", side, work / found)
    except RuntimeError as error:  # a format the build lacks, or no memory for the largest
        if best is None and "not implemented" not in str(error):
            raise
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return best


def _copies(device: Device) -> Iterator[Ceiling]:
    """One ceiling a size: below the caches' sizes it is theirs, the largest is the memory's."""
    for size in _COPIES[device.type]:
        try:
            # Floats, as a model's: on a CPU torch copies bytes of 256 MiB a tenth slower.
            source = torch.ones(size // 4, device=device.torch_device)
            target = torch.zeros_like(source)
        except (RuntimeError, MemoryError):
            return
        rate = 2 * size / _best(device, lambda s=source, t=target: t.copy_(s))  # type: ignore[misc]
        yield _ceiling(checkup.COPY, "bytes/s", size, rate)


def _transfers(device: Device) -> Iterator[Ceiling]:
    """Between the host's memory and the device's; a CPU has none."""
    if device.type == "cpu":
        return
    there = torch.empty(_TRANSFER, dtype=torch.uint8, device=device.torch_device)
    pageable = torch.ones(_TRANSFER, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    cases: tuple[tuple[str, Callable[[], Any]], ...] = (
        (checkup.TO_DEVICE_PINNED, lambda: there.copy_(pinned, non_blocking=True)),
        (checkup.TO_DEVICE_PAGEABLE, lambda: there.copy_(pageable)),
        (checkup.TO_HOST_PINNED, lambda: pinned.copy_(there, non_blocking=True)),
    )
    for name, copy in cases:
        yield _ceiling(name, "bytes/s", _TRANSFER, _TRANSFER / _best(device, copy))


def _launches(device: Device) -> Iterator[Ceiling]:
    """How many operators a second the host can hand out, when none has anything to do.

    `launch` is the bare operator. `step_ops` is the same inside a training step, autograd's
    forward and backward included, per operator that reaches the device.
    """
    x = torch.zeros(1, device=device.torch_device)

    def chain() -> None:
        for _ in range(CHAIN):
            x.add_(1)

    yield _ceiling(checkup.LAUNCH, "1/s", CHAIN, CHAIN / _best(device, chain))
    weight = torch.ones(1, device=device.torch_device, requires_grad=True)

    def step() -> None:
        y = weight
        for _ in range(CHAIN):
            y = y.sin()
        y.backward()  # type: ignore[no-untyped-call]

    # sin forward; cos and mul backward: three operators a link of the chain.
    yield _ceiling(checkup.STEP_OPS, "1/s", 3 * CHAIN, 3 * CHAIN / _best(device, step))


def _best(device: Device, work: Callable[[], Any]) -> float:
    """Seconds of one call, the best repetition. The device is waited for at both ends only."""
    work()
    calls, took = 1, _timed(device, work, 1)
    while took < REPEAT_NS and calls < 2**20:
        calls = max(calls + 1, min(calls * 16, int(calls * 1.2 * REPEAT_NS / max(took, 1))))
        took = _timed(device, work, calls)
    return min(took, *(_timed(device, work, calls) for _ in range(REPEATS - 1))) / calls / 1e9


def _timed(device: Device, work: Callable[[], Any], calls: int) -> int:
    device.synchronize()
    begin = now_ns()
    for _ in range(calls):
        work()
    device.synchronize()
    return now_ns() - begin


def _ceiling(name: str, unit: str, size: int, best: float) -> Ceiling:
    return Ceiling(name=name, unit=unit, size=size, best=best, repeats=REPEATS)


def _better(known: Ceiling | None, name: str, unit: str, size: int, best: float) -> Ceiling:
    return known if known and known.best >= best else _ceiling(name, unit, size, best)
