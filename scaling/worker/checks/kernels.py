"""Time every operator of a step by shapes and types, for a simulation of the same program elsewhere.

On the CPU an operator's time is that of its call. On a device it lies between two events on the stream, in a step that
is queued behind a long wait, so that the device never waits for the host.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from scaling.records.checkup import SCHEMA, Kernel, KernelTable
from scaling.records.files import write_json
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import now_ns, sleeps
from scaling.worker.accelerator.precision import Precision
from scaling.worker.checks.steps import Bench, benched
from scaling.worker.data.workload import Workload
from scaling.worker.measure.step import Loop
from scaling.worker.session.session import LaunchSession

STEPS = 3
"""Steps with timed operators, and as many without; of each operator's times the median counts."""
SLOW_NS, SLOWEST_NS = 300_000_000, 2_000_000_000
"""A step longer than the first is timed once; one longer than the second not at all, since a run promises its end."""
FREE = ("profiler", "prim")
CREATES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "detach")
COPIES = ("copy_", "_to_copy", "clone", "contiguous")
TYPES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.bfloat16: "BFloat16",
    torch.float16: "Half",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}
"""Types by the names of c10::ScalarType, which the simulated device's table has."""


def note_kernels(session: LaunchSession, workload: Workload, precision: Precision) -> None:
    """Write kernels-0.json from rank 0, while all ranks do the same. A step that fails leaves no file."""
    device, spec = session.device, session.plan.spec

    def times(bench: Bench) -> KernelTable:
        return measure(bench.loop(bench.batch), device, batch=bench.batch, precision=spec.precision)

    found = benched(session, workload, precision, "kernel times", times)
    if found is not None and session.rank == 0:
        write_json(session.folder.kernels(0), found, indent=None)


def measure(loop: Loop, device: Accelerator, *, batch: int, precision: str) -> KernelTable:
    """Times of a loop's operators; the loop's optimizer makes its state first."""
    loop.plain()
    steps = _steps(_mean_ns(loop, device, 1))
    with sleeps() as slept:
        step_ns = _mean_ns(loop, device, steps)
    timed = Timing(device)
    for _ in range(steps):
        device.synchronize()
        timed.begin()
        with timed:
            loop.plain()
        device.synchronize()
        timed.collect()
    return KernelTable(
        schema=SCHEMA,
        batch=batch,
        precision=precision,
        step_ns=step_ns,
        kernels=timed.kernels(steps),
        slept_ns=sum(slept) // steps,
    )


def _steps(step_ns: int) -> int:
    """How many steps are timed. RuntimeError where one takes too long."""
    if step_ns > SLOWEST_NS:
        raise RuntimeError(
            f"a step takes {step_ns / 1e9:.1f} s, and longer than {SLOWEST_NS / 1e9:.0f} s is not timed"
        )
    return STEPS if step_ns <= SLOW_NS else 1


def _mean_ns(loop: Loop, device: Accelerator, steps: int) -> int:
    device.synchronize()
    begin = now_ns()
    for _ in range(steps):
        loop.plain()
    device.synchronize()
    return (now_ns() - begin) // steps


class Timing(TorchDispatchMode):
    """Times operators while it is active. Views and allocations are no kernels."""

    def __init__(self, device: Accelerator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._stamp: Callable[[], Any] = now_ns if device.type == "cpu" else self._event
        self._pairs: list[tuple[str, str, int, int, Any, Any]] = []
        self._times: dict[str, list[int]] = collections.defaultdict(list)
        self._work: dict[str, tuple[str, int, int]] = {}
        self._own_ns = self._cost_of_a_call() if device.type == "cpu" else 0

    def begin(self) -> None:
        """Let a device wait long enough for the host to queue what follows."""
        sleep = getattr(getattr(torch, self._device.type, None), "_sleep", None)
        if sleep is not None:
            sleep(2_000_000_000)  # cycles, a second or more

    def collect(self) -> None:
        """Take the times of the step that is done."""
        for key, name, flops, size, begin, end in self._pairs:
            took = (
                end - begin - self._own_ns
                if self._device.type == "cpu"
                else round(begin.elapsed_time(end) * 1e6)
            )
            self._times[key].append(max(0, took))
            self._work[key] = name, flops, size
        self._pairs.clear()

    def kernels(self, steps: int) -> tuple[Kernel, ...]:
        """The median of each operator's times."""
        found = []
        for key, times in self._times.items():
            name, flops, size = self._work[key]
            median = sorted(times)[len(times) // 2]
            found.append(
                Kernel(
                    key=key, operator=name, calls=len(times) / steps, time_ns=median, flops=flops, bytes=size
                )
            )
        return tuple(found)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator between two stamps."""
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")  # noqa: SLF001
        if func.namespace in FREE or getattr(func, "is_view", False) or name in CREATES:
            return func(*args, **kwargs)
        begin = self._stamp()
        result = func(*args, **kwargs)
        end = self._stamp()
        given = [t for t in tree_leaves((args, {k: v for k, v in kwargs.items() if k != "out"})) if _is(t)]
        made = [t for t in tree_leaves(result) if _is(t)]
        if not made or not any(t.device.type == self._device.type for t in made):
            return result
        counter = flop_registry.get(func._overloadpacket)  # noqa: SLF001
        flops = int(counter(*args, **kwargs, out_val=result)) if counter else 0
        key, operator = _key(name, given, made)
        size = sum(t.numel() * t.element_size() for t in (*given, *made))
        self._pairs.append((key, operator, flops, size, begin, end))
        return result

    def _event(self) -> Any:
        event = torch.Event(self._device.type, enable_timing=True)
        event.record()
        return event

    def _cost_of_a_call(self) -> int:
        """What the stamps and the call of an operator that does nothing take."""
        x = torch.zeros(1)
        times = []
        for _ in range(200):
            begin = now_ns()
            torch.ops.aten.alias.default(x)
            times.append(now_ns() - begin)
        return sorted(times)[len(times) // 2]


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _key(name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> tuple[str, str]:
    """The operator's key in the simulated device's table, and its name there."""
    if name in COPIES:
        source = given[-1] if name == "copy_" and len(given) > 1 else given[0]
        target = made[0]
        return f"copy|{_type(source)}>{_type(target)} {target.numel()}", "copy"
    plain = f"aten::{name.removesuffix('_')}"
    shapes = (f"{_type(t)} {','.join(map(str, t.shape))}" for t in given if t.dim())
    return f"{plain}|{';'.join(shapes)}", plain


def _type(tensor: torch.Tensor) -> str:
    return TYPES.get(tensor.dtype, str(tensor.dtype))
