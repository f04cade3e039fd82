"""Measure the best rates of this device: matrix products, convolutions, copies, transfers, launches.

Each rate is the best of several repetitions of at least `REPEAT_NS`, over a few sizes, because disturbances only slow a
repetition down, as in STREAM (McCalpin 1995). Products and convolutions count only once the device has computed for
`RAMP_NS`: a device that has just been idle runs at clocks that it cannot keep.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from scaling.records import checkup
from scaling.records.checkup import Ceiling
from scaling.settings.topology import CPU, SIMULATED
from scaling.worker.accelerator.accelerator import DTYPES, Accelerator
from scaling.worker.accelerator.clock import is_virtual, now_ns
from scaling.worker.accelerator.cuda import cudnn_tf32, matmul_tf32

REPEATS = 7
REPEAT_NS = 10_000_000
RAMP_NS = 100_000_000
KINDS = (checkup.MATMUL, checkup.CONVOLUTION)
LOAD_NS = 500_000_000
"""What each kind of computing takes in one format, once its kernels are ready."""
CALL_SHARE = 0.5
"""A kernel with a call longer than this part of it is left out."""
CALLS_MAX, CALLS_VIRTUAL = 2**20, 16
"""Calls of a repetition at most. On a virtual clock all repetitions take the same time, so there is only one of each
kind: a second on it can be many minutes of arithmetic."""
CHAIN = 64
"""Operators in a launch chain, enough to hide the cost of the loop around it."""

_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, **DTYPES}
_LACKING = ("not implemented", "could not create")
"""What torch says of a format that a kernel does not have."""
_OTHER = "accelerator"
"""Key of what an accelerator gets."""
_SIDES = {CPU: (512, 1024), _OTHER: (2048, 4096, 8192)}
_CONVOLUTIONS = {
    CPU: ((32, 32, 8, 7), (16, 64, 16, 3), (8, 64, 16, 7)),
    _OTHER: ((64, 64, 32, 7), (64, 256, 32, 7)),
}
"""(samples, channels in and out, side of the images, side of the kernel), ascending in work. Those of a GPU are
none that Winograd does in fewer operations."""
_COPIES = {CPU: (2**20, 2**22, 2**24, 2**26, 2**28), _OTHER: (2**22, 2**24, 2**26, 2**28, 2**30)}
"""Bytes of the buffer that is read, ascending. A second one of the same size is written."""
_TRANSFER = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """A call to measure, and its work."""

    size: int
    flops: int
    call: Callable[[], Any]


def measure(
    device: Accelerator, precisions: tuple[str, ...], kinds: Iterable[str] = KINDS
) -> tuple[Ceiling, ...]:
    """All ceilings of this rank's device, those of `kinds` in the given number formats.

    Takes about `LOAD_NS` for each kind and format, and one second for all else.
    """
    with device.only_timed():
        computing = [c for name in precisions for c in _computing(device, name, kinds)]
        return (*computing, *_copies(device), *_transfers(device), *_launches(device))


def _computing(device: Accelerator, precision: str, kinds: Iterable[str]) -> tuple[Ceiling, ...]:
    """The best rates of some kinds under load, without a kind that torch's build lacks."""
    before = matmul_tf32(), cudnn_tf32()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        with torch.no_grad():
            kernels = {kind + precision: _KERNELS[kind](device, _DTYPES[precision]) for kind in kinds}
            return _under_load(device, kernels)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _sizes(device: Accelerator) -> str:
    """The key of the sizes that a device gets. A simulated one computes on the CPU, and its times follow a model."""
    return CPU if device.type in (CPU, SIMULATED) else _OTHER


def _products(device: Accelerator, dtype: torch.dtype) -> Iterator[_Kernel]:
    for side in _SIDES[_sizes(device)]:
        a, b = (torch.randn(side, side, device=device.torch_device).to(dtype) for _ in range(2))
        multiply = functools.partial(torch.mm, a, b, out=torch.empty_like(a))
        yield _Kernel(size=side, flops=2 * side**3, call=multiply)


def _convolutions(device: Accelerator, dtype: torch.dtype) -> Iterator[_Kernel]:
    """Their output is as large as the input. On an accelerator channels come last, as its matrix units want them."""
    order = torch.contiguous_format if device.type == CPU else torch.channels_last
    for n, channels, side, kernel in _CONVOLUTIONS[_sizes(device)]:
        x, weight = (
            torch.randn(first, channels, edge, edge, device=device.torch_device).to(
                dtype, memory_format=order
            )
            for first, edge in ((n, side), (channels, kernel))
        )
        convolve = functools.partial(torch.nn.functional.conv2d, x, weight, padding=kernel // 2)
        yield _Kernel(size=channels, flops=2 * n * (channels * side * kernel) ** 2, call=convolve)


_KERNELS = {checkup.MATMUL: _products, checkup.CONVOLUTION: _convolutions}


def _under_load(device: Accelerator, kinds: Mapping[str, Iterator[_Kernel]]) -> tuple[Ceiling, ...]:
    """All kernels in turns, `LOAD_NS` for each kind; the best repetition of each kind after `RAMP_NS` counts.

    In turns, so that what disturbs one kind disturbs the others too: they are compared with each other.
    """
    begin = now_ns()
    ready = [
        (name, kernel, calls) for name, kernels in kinds.items() for kernel, calls in _ready(device, kernels)
    ]
    best: dict[str, Ceiling] = {}
    repeats, turns = 0, now_ns()
    while ready and (not repeats or (now_ns() - turns < LOAD_NS * len(kinds) and not is_virtual())):
        ramped = now_ns() - begin >= RAMP_NS or is_virtual()
        repeats += ramped
        for name, kernel, calls in ready:
            took = _timed(device, kernel.call, calls)
            rate = 1e9 * kernel.flops * calls / took
            if ramped and (name not in best or rate > best[name].best):
                best[name] = _ceiling(name, "FLOP/s", kernel.size, rate)
    return tuple(replace(ceiling, repeats=repeats) for ceiling in best.values())


def _ready(device: Accelerator, kernels: Iterator[_Kernel]) -> list[tuple[_Kernel, int]]:
    """Kernels that run here, each with the calls of a repetition. One that memory does not hold ends the list."""
    runnable: list[tuple[_Kernel, int]] = []
    rate = 0.0
    try:
        for kernel in kernels:
            if rate and kernel.flops / rate > CALL_SHARE * LOAD_NS:
                break
            kernel.call()  # chooses an algorithm and makes its workspace
            calls, took = _calls(device, kernel.call)
            runnable.append((kernel, calls))
            rate = kernel.flops * calls / took
    except RuntimeError as error:
        if not runnable and not any(phrase in str(error) for phrase in _LACKING):
            raise
    return runnable


def _copies(device: Accelerator) -> Iterator[Ceiling]:
    """One ceiling per size. Small sizes measure the caches; the largest one measures the memory."""
    for size in _COPIES[_sizes(device)]:
        try:
            # Floats, as a model's: on a CPU torch copies bytes of 256 MiB a tenth slower.
            source = torch.ones(size // 4, device=device.torch_device)
            target = torch.zeros_like(source)
        except (RuntimeError, MemoryError):
            return
        rate = 2 * size / _best(device, functools.partial(target.copy_, source))
        yield _ceiling(checkup.COPY, "bytes/s", size, rate)


def _transfers(device: Accelerator) -> Iterator[Ceiling]:
    """Transfers between the host's and the device's memory; none for a CPU."""
    if device.type == CPU:
        return
    on_device = torch.empty(_TRANSFER, dtype=torch.uint8, device=device.torch_device)
    pageable = torch.ones(_TRANSFER, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    cases: tuple[tuple[str, Callable[[], Any]], ...] = (
        (checkup.TO_DEVICE_PINNED, lambda: on_device.copy_(pinned, non_blocking=True)),
        (checkup.TO_DEVICE_PAGEABLE, lambda: on_device.copy_(pageable)),
        (checkup.TO_HOST_PINNED, lambda: pinned.copy_(on_device, non_blocking=True)),
    )
    for name, copy in cases:
        yield _ceiling(name, "bytes/s", _TRANSFER, _TRANSFER / _best(device, copy))


def _launches(device: Accelerator) -> Iterator[Ceiling]:
    """How many empty operators per second the host can issue.

    `launch` is the bare operator. `step_ops` is the rate inside a training step, with autograd's forward and backward,
    per operator that reaches the device.
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

    # sin forward, cos and mul backward: three operators per link of the chain.
    yield _ceiling(checkup.STEP_OPS, "1/s", 3 * CHAIN, 3 * CHAIN / _best(device, step))


def _best(device: Accelerator, work: Callable[[], Any]) -> float:
    """Seconds per call in the best repetition, synchronised with the device at both ends only."""
    work()
    calls, took = _calls(device, work)
    repeats = 0 if is_virtual() else REPEATS - 1
    return min([took, *(_timed(device, work, calls) for _ in range(repeats))]) / calls / 1e9


def _calls(device: Accelerator, work: Callable[[], Any]) -> tuple[int, int]:
    """(calls that take REPEAT_NS at least, what they took in ns)."""
    calls, took = 1, _timed(device, work, 1)
    most = CALLS_VIRTUAL if is_virtual() else CALLS_MAX
    while took < REPEAT_NS and calls < most:
        calls = max(calls + 1, min(calls * 16, int(calls * 1.2 * REPEAT_NS / max(took, 1)), most))
        took = _timed(device, work, calls)
    return calls, took


def _timed(device: Accelerator, work: Callable[[], Any], calls: int) -> int:
    device.synchronize()
    begin = now_ns()
    for _ in range(calls):
        work()
    device.synchronize()
    return now_ns() - begin


def _ceiling(name: str, unit: str, size: int, best: float) -> Ceiling:
    return Ceiling(name=name, unit=unit, size=size, best=best, repeats=REPEATS)
