"""Record once, before the first round, what a step asks of the device, what the device gives, and what kernels take.

roofline-0.json has FLOPs and bytes of the step's operators, and the ceilings. kernels-0.json has the time of every
operator by shapes and types, for the step's parts and for a simulation of the same program elsewhere. On the CPU an
operator's time is that of its call. On a device it lies between two events on the stream, and some hundred operators
at a time are queued behind a kernel that only waits, so that the device never waits for the host.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from pathlib import Path
from statistics import median_high
from typing import Any

import torch

from scaling.records.checkup import MATMUL, SCHEMA, Kernel, KernelTable, Roofline
from scaling.records.files import write_json
from scaling.worker.accelerator.accelerator import Accelerator, Precision
from scaling.worker.accelerator.clock import is_virtual, now_ns, sleeps
from scaling.worker.checks import ceilings
from scaling.worker.checks.steps import Bench
from scaling.worker.checks.work import Layers, flops_of, is_free
from scaling.worker.data.workload import Workload
from scaling.worker.measure.step import Loop
from scaling.worker.parallel.torch_private import TorchDispatchMode, aten_name, tensors_in
from scaling.worker.session.session import LaunchSession

STEPS = 3
"""Steps with timed operators, and as many without; of each operator's times the median counts."""
SLOW_NS, SLOWEST_NS = 300_000_000, 2_000_000_000
"""A step longer than the first is timed once; one longer than the second not at all, since a run promises its end."""
CHUNK = 200
"""Operators that are queued at once: CUDA holds some thousand launches; each event is one, an operator one or many."""
FIRST_NS, LONGEST_NS = 50_000_000, 1_000_000_000
"""How long the device waits for the first of them to be queued, and for any at most."""
CYCLES_S = 2e9
"""Clock of a GPU: `torch.cuda._sleep` counts cycles, and few have a higher clock."""
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


def note_step(session: LaunchSession, workload: Workload, precision: Precision) -> None:
    """Write roofline-0.json and kernels-0.json from rank 0, while all ranks do the same, for the largest world size.

    A step that cannot be counted, or timed, leaves a line and no such file, nothing of it stays on the device, and the
    run goes on. The trial itself then finds whether the step fits or fails.
    """
    plan, device, asked = session.plan, session.device, session.plan.spec.precision
    trial = max(plan.trials, key=lambda t: t.world_size)

    def counted(bench: Bench) -> Roofline:
        work = bench.work()
        # The library of convolutions alone takes 7 MiB, which a training without them would not.
        kinds = ceilings.KINDS if work.convolves else (MATMUL,)
        rates = ceilings.measure(device, (asked,), kinds) if work.flops else ()
        return Roofline(schema=SCHEMA, rank=session.rank, ceilings=rates, work=work)

    def timed(bench: Bench) -> KernelTable:
        return measure(bench.loop(bench.batch)[0], device, batch=bench.batch, precision=asked)

    def benched(what: str, file: Path, do: Callable[[Bench], Roofline | KernelTable]) -> None:
        try:
            document = do(Bench(plan, trial, workload, device, precision, session.rank))
        except Exception as error:  # noqa: BLE001  # a model may raise anything
            print(f"no {what}: {type(error).__name__}: {error}")
        else:
            if session.lead:
                write_json(file, document, indent=None)
        finally:
            workload.module.zero_grad(set_to_none=True)
            device.release_memory()
            device.reset_peak()

    if not is_virtual():  # there the ceilings are settings, and a second is long
        benched("roofline", session.folder.roofline(0), counted)
    benched("kernel times", session.folder.kernels(0), timed)


def measure(loop: Loop, device: Accelerator, *, batch: int, precision: str) -> KernelTable:
    """Times of a loop's operators; the loop's optimizer makes its state first."""
    loop.plain()
    steps = _steps(_mean_ns(loop, device, 1))
    with sleeps() as slept:
        step_ns = _mean_ns(loop, device, steps)
    queued_ns = _queued_ns(loop, device, step_ns)
    layers = Layers()
    timed = Timing(device, layers)
    for _ in range(steps):
        with layers, timed:
            loop.plain()
        timed.collect()
    return KernelTable(
        schema=SCHEMA,
        batch=batch,
        precision=precision,
        step_ns=step_ns,
        kernels=timed.kernels(steps),
        slept_ns=sum(slept) // steps,
        queued_ns=queued_ns,
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


def _queued_ns(loop: Loop, device: Accelerator, step_ns: int) -> int:
    """What a device takes for a step that the host has queued before it begins; 0 where a device cannot wait so."""
    device.synchronize()
    if not _hold_up(device, 2 * step_ns):
        return 0
    begin = _event(device)
    loop.plain()
    end = _event(device)
    device.synchronize()
    return int(1e6 * begin.elapsed_time(end))


def _hold_up(device: Accelerator, ns: int) -> bool:
    """Queue a kernel that only waits on the current stream; False where the device has none."""
    module: Any = getattr(torch, device.type, None)
    seconds = min(ns, LONGEST_NS) / 1e9
    if hasattr(module, "sleep_us"):  # the simulated device's
        module.sleep_us(seconds * 1e6)
    elif hasattr(module, "_sleep"):
        module._sleep(round(seconds * CYCLES_S))  # noqa: SLF001
    else:
        return False
    return True


def _event(device: Accelerator) -> Any:
    event: Any = torch.Event(device.type, enable_timing=True)
    event.record()
    return event


class Timing(TorchDispatchMode):
    """Times operators while it is active. Views and allocations are no kernels."""

    def __init__(self, device: Accelerator, layers: Layers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._layers, self._on_host = device, layers, device.type == "cpu"
        self._stamp: Callable[[], Any] = now_ns if self._on_host else functools.partial(_event, device)
        self._pairs: list[tuple[str, Any, Any]] = []
        self._begin_ns, self._wait_ns = 0, FIRST_NS
        self._times: dict[str, list[int]] = collections.defaultdict(list)
        self._late: dict[str, list[int]] = collections.defaultdict(list)
        """Times of operators for which the device may have waited; they count where an operator has no other time."""
        self._work: dict[str, tuple[str, int, int]] = {}
        self._layers_of: dict[str, dict[str, None]] = collections.defaultdict(dict)
        self._own_ns = self._cost_of_a_call() if self._on_host else 0

    def collect(self) -> None:
        """Take the times of what is queued."""
        if not self._pairs:
            return
        late = not self._on_host and self._pairs[0][1].query()
        self._wait_ns = 2 * (now_ns() - self._begin_ns)
        self._device.synchronize()
        for key, begin, end in self._pairs:
            took = end - begin - self._own_ns if self._on_host else round(begin.elapsed_time(end) * 1e6)
            (self._late if late else self._times)[key].append(max(0, took))
        self._pairs.clear()

    def kernels(self, steps: int) -> tuple[Kernel, ...]:
        """The median of each operator's times."""
        kernels = []
        for key, (name, flops, size) in self._work.items():
            times, layers = self._times[key] or self._late[key], list(self._layers_of[key])
            kernels.append(
                Kernel(
                    key=key,
                    operator=name,
                    calls=(len(self._times[key]) + len(self._late[key])) / steps,
                    time_ns=median_high(times),
                    flops=flops,
                    bytes=size,
                    layer=layers[0],
                    layers=len(layers),
                )
            )
        return tuple(kernels)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator between two stamps."""
        kwargs = kwargs or {}
        layer = self._layers.layer()
        if is_free(func):
            return func(*args, **kwargs)
        if not self._pairs:
            self._device.synchronize()
            self._begin_ns = now_ns()
            _hold_up(self._device, self._wait_ns)
        begin = self._stamp()
        result = func(*args, **kwargs)
        end = self._stamp()
        inputs = tensors_in((args, {k: v for k, v in kwargs.items() if k != "out"}))
        outputs = tensors_in(args[0] if result is None and args else result)
        if not outputs or not any(t.device.type == self._device.type for t in outputs):
            return result
        flops = flops_of(func, args, kwargs, result)
        key, operator = _key(aten_name(func), inputs, outputs)
        size = sum(t.numel() * t.element_size() for t in (*inputs, *outputs))
        self._work[key] = operator, flops, size
        self._layers_of[key][layer] = None
        self._pairs.append((key, begin, end))
        if len(self._pairs) == CHUNK:
            self.collect()
        return result

    def _cost_of_a_call(self) -> int:
        """What the stamps and the call of an operator that does nothing take."""
        x = torch.zeros(1)
        times = []
        for _ in range(200):
            begin = now_ns()
            torch.ops.aten.alias.default(x)
            times.append(now_ns() - begin)
        return median_high(times)


def _key(name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> tuple[str, str]:
    """The operator's key in the simulated device's table, and its name there."""
    if name in COPIES:
        source = inputs[-1] if name == "copy_" and len(inputs) > 1 else inputs[0]
        target = outputs[0]
        return f"copy|{_type(source)}>{_type(target)} {target.numel()}", "copy"
    plain = f"aten::{name.removesuffix('_')}"
    shapes = (f"{_type(t)} {','.join(map(str, t.shape))}" for t in inputs if t.dim())
    return f"{plain}|{';'.join(shapes)}", plain


def _type(tensor: torch.Tensor) -> str:
    return TYPES.get(tensor.dtype, str(tensor.dtype))
