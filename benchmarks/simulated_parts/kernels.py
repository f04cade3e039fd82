"""Where the step of a real model goes on a simulated device, beside the simulation's own tasks."""

from __future__ import annotations

from dataclasses import dataclass

from simulated_device import ranks as processes

from scaling.analysis.decompose.kernels import COMPUTE, IDLE, MEMORY
from scaling.analysis.decompose.roofline import roofline
from scaling.analysis.results import Measured, RooflineResult
from scaling.config.compose import requests
from scaling.records import checkup
from scaling.records.checkup import Ceiling
from scaling.settings.plan import make_plan
from scaling.settings.topology import SimulatedDevice
from scaling_simulator.simulation import KernelTimes

MODELS = (("resnet50", 4, "aten::native_batch_norm", MEMORY), ("gpt2", 1, "aten::addmm", COMPUTE))
"""Models, samples of a batch, the operator whose kernels are slow there, and the part that they belong to."""
SLOW = 4.0
"""How much longer than its ceiling the slow operator takes."""
FLOP_S, MEMORY_BYTES_S, HOST_BYTES_S = 100e12, 1e12, 50e9
KERNEL_US = 3.0
EXPLAINED = 0.9
"""What named parts explain of a step at least."""
AHEAD_US, BEHIND_US = 1.0, 60.0
"""A launch of a host that keeps the device busy, and of one that the device waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A step as it is explained, and what the simulation knows of it."""

    line: RooflineResult
    slow_ms: float
    """All kernels of the slow operator."""
    idle_ms: float
    kernels_ms: float

    @property
    def share(self) -> float:
        """The part of the step that named parts explain."""
        assert self.line.where is not None
        return 1 - abs(self.line.where.unexplained_ms.value) / self.line.step_ms.value

    def figures(self, slow: str) -> list[tuple[str, float, float]]:
        """(what, as explained, as the simulation knows it), ms; `slow`: the part of the slow kernels."""
        assert self.line.where is not None
        parts = {part.name: part.ms.value for part in self.line.where.parts}
        idle = parts.pop(IDLE, 0.0)
        return [
            ("kernels", sum(parts.values()), self.kernels_ms),
            ("the slow kernels", parts.get(slow, 0.0), self.slow_ms),
            ("waits for the host", idle, self.idle_ms),
        ]


def explained(model: str, batch: int, slow: str, launch_us: float) -> Explained:
    """Train the model on one simulated device, time its kernels as a run does, and explain its step."""
    asked = {"model": model, "batch": batch, "slow": slow, "launch_us": launch_us}
    (answer,) = processes.run(_ranked, group=False, **asked)
    assert isinstance(answer, Explained), answer
    return answer


def _ranked(rank: int, _: int, *, model: str, batch: int, slow: str, launch_us: float) -> Explained:
    import torch

    from scaling.worker.accelerator.accelerator import Precision
    from scaling.worker.accelerator.clock import now_ns
    from scaling.worker.accelerator.devices import open_kind
    from scaling.worker.checks.kernels import measure
    from scaling.worker.checks.steps import Bench
    from scaling.worker.data.workload import build
    from scaling_simulator.alone import use_times
    from scaling_simulator.trace import recorded

    settings = SimulatedDevice(
        clock="virtual",
        arithmetic=False,
        launch_us=launch_us,
        kernel_us=KERNEL_US,
        tflops=FLOP_S / 1e12,
        memory_gb_s=MEMORY_BYTES_S / 1e9,
        host_gb_s=HOST_BYTES_S / 1e9,
        capacity_bytes=80 * 2**30,
    )
    device = open_kind("sim", settings)
    use_times(KernelTimes(chip=None, factors={slow: SLOW, "*": 1.0}))
    (request,) = requests(
        "run", [f"model={model}", f"batch_per_rank={batch}", "topology=local", "world_sizes=[1]"]
    ).items
    plan = make_plan(request.spec, run_id="simulated", created="", version="")
    torch.manual_seed(0)
    workload = build(plan.spec.model.target, plan.spec.model.args)
    workload.module.to(device.torch_device)
    bench = Bench(plan, plan.trials[0], workload, device, Precision(plan.spec.precision, "sim"), rank)
    work = bench.work()
    loop, _ = bench.loop(bench.batch)
    table = measure(loop, device, batch=bench.batch, precision=plan.spec.precision)
    with recorded() as tasks:
        begin = now_ns()
        loop.plain()
        device.synchronize()
        step_ns = now_ns() - begin
    busy = sum(task.end_ns - task.start_ns for task in tasks)
    line = roofline(
        _ceilings(plan.spec.precision),
        work,
        Measured(step_ns / 1e6),
        rank=0,
        device="sim: known rates",
        kernels=table,
    )
    assert line is not None
    return Explained(
        line=line,
        slow_ms=sum(task.end_ns - task.start_ns for task in tasks if task.kind == slow) / 1e6,
        idle_ms=(step_ns - busy) / 1e6,
        kernels_ms=busy / 1e6,
    )


def _ceilings(precision: str) -> tuple[Ceiling, ...]:
    """The device's own rates."""
    rates = (
        (checkup.MATMUL + precision, "FLOP/s", FLOP_S),
        (checkup.COPY, "bytes/s", MEMORY_BYTES_S),
        (checkup.TO_DEVICE_PINNED, "bytes/s", HOST_BYTES_S),
        (checkup.STEP_OPS, "1/s", 1e6),
    )
    return tuple(
        Ceiling(name=name, unit=unit, size=2**28, best=best, repeats=1) for name, unit, best in rates
    )
