"""Runs the training program of a run as one rank of a mesh, and says what a step takes."""

from __future__ import annotations

import dataclasses
import resource
import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from scaling.errors import InputError
from scaling.settings.run import Inject, Spec
from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.accelerator.clock import HostClock
from scaling.worker.accelerator.memory import is_out_of_memory
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload, build
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.step import Loop
from scaling.worker.models.options import shaped
from scaling.worker.parallel.replicated import held_bytes
from scaling_simulator import alone, figures, shards, trace
from scaling_simulator.device import load
from scaling_simulator.module import Event
from scaling_simulator.simulation import Memory, Simulated, Simulation, Step
from scaling_simulator.simulation import Task as Drawn

SETTLE, SETTLE_DDP = 1, 3
"""Steps after the first, in which the optimizer makes its state: DDP rebuilds its buckets in the second or third."""
TIMELINE_MAX = 100_000
"""Tasks of a timeline; a longer step is cut off there."""


def simulate(asked: Simulation) -> Simulated:
    """Simulate a step for each physics. Never raises for what the program itself does: `failed` says it."""
    alone.begin(asked)
    parameters = 0
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            workload = workload_of(asked.spec)
            parameters = sum(p.numel() for p in workload.module.parameters())
            simulated = dataclasses.replace(Program(asked, workload).run(), parameters=parameters)
    except Exception as error:  # noqa: BLE001  # a user's program may raise anything
        text = str(error).strip().split("\n")[0]
        failure = text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
        return Simulated(
            failed=failure,
            out_of_memory=is_out_of_memory(error),
            parameters=parameters,
            host_peak_bytes=_host_peak_bytes(),
        )
    said_warnings = dict.fromkeys(str(w.message).split("\n")[0] for w in caught if "sim" in str(w.message))
    return dataclasses.replace(simulated, warnings=(*simulated.warnings, *said_warnings))


def workload_of(spec: Spec) -> Workload:
    """The run's model without memory, and its batches."""
    with torch.device("meta"):
        return shaped(build(spec.model.target, spec.model.args), spec)


class _SimulatedDevice(Cpu):
    """The device as a training loop sees it."""

    type = "sim"

    def __init__(self) -> None:
        super().__init__()
        self.torch_device = torch.device("sim", torch.accelerator.current_device_index())
        self.clock = HostClock()

    def load(self, batch: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda t: t.to(self.torch_device, non_blocking=True), batch)


class Program:
    """The training loop of a run on the simulated device."""

    def __init__(self, asked: Simulation, workload: Workload) -> None:
        spec, mesh = asked.spec, asked.mesh
        self._asked = asked
        device = _SimulatedDevice()
        shards.refuse_experts(workload.module)
        trained = shards.spread(workload, spec, mesh, device)
        self._module, self._optimizer = trained.module, trained.optimizer
        batch = workload.make_batch(
            max(1, asked.batch // spec.accumulation_steps), torch.Generator().manual_seed(0)
        )
        self.loop = Loop(
            workload=workload,
            module=self._module,
            optimizer=self._optimizer,
            fetch=Feed([batch]).fetch,
            accumulation=spec.accumulation_steps,
            accumulate=trained.accumulate,
            device=device,
            precision=Precision(spec.precision, "sim"),
            faults=Faults(Inject(), rank=asked.rank, first_on_host=False),
        )
        self._warnings = _differences(spec, workload)

    def run(self) -> Simulated:
        """Steps for each physics; memory, kernels and digest are those of the first one."""
        library = load()
        state = self._state()
        self._settle(SETTLE if self._asked.spec.parallel.sharded else SETTLE_DDP)
        torch.accelerator.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        library.take_flops()
        library.take_tally()
        first, tasks, edges = self._step(self._asked.physics[0].name)
        peak = torch.accelerator.max_memory_allocated()
        flops, tally = library.take_flops(), library.take_tally()
        steps = [first]
        for physics in self._asked.physics[1:]:
            alone.use(physics)
            steps.append(self._step(physics.name)[0])
        measured, scaled, assumed, missing = tally
        total = max(1, measured + scaled + assumed)
        inside = [t for t in tasks if edges[0] <= t.start_ns < edges[1]]
        return Simulated(
            steps=tuple(steps),
            memory=Memory(
                peak_bytes=peak,
                parameters_bytes=state["parameters"],
                gradients_bytes=state["gradients"],
                optimizer_bytes=state["optimizer"],
                activations_bytes=max(0, peak - sum(state.values())),
            ),
            flops=flops / 2,
            kernels=len(inside),
            digest=figures.digest(inside),
            measured_share=measured / total,
            scaled_share=scaled / total,
            assumed={name: ns / total for name, ns in sorted(missing.items(), key=lambda kv: -kv[1])},
            warnings=self._warnings,
            timeline=_drawn(inside, edges[0]) if self._asked.timeline else (),
            host_peak_bytes=_host_peak_bytes(),
        )

    def _settle(self, steps: int) -> None:
        for _ in range(steps):
            self.loop.plain()

    def _step(self, physics: str) -> tuple[Step, list[trace.Task], tuple[int, int]]:
        """Two steps back to back; the one that counts lies between the ends of both."""
        ends = [Event(enable_timing=True) for _ in range(2)]
        with trace.recorded() as tasks:
            for end in ends:
                self.loop.plain()
                end.record()
        edges = ends[0].stamp_ns, ends[1].stamp_ns
        return figures.step_of(physics, tasks, *edges), tasks, edges

    def _state(self) -> dict[str, int]:
        """Run the first step; bytes of a rank's own parameters, gradients and optimizer state after it."""
        self.loop.held(reduce=True)
        state = held_bytes(self._module, self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)
        return state


def _differences(spec: Spec, workload: Workload) -> tuple[str, ...]:
    """What this program does here otherwise than on the device that it stands for."""
    notes = []
    if spec.compile:
        notes.append("compile=true: the simulated program is not compiled, so its kernels are not fused")
    implementations = {
        str(getattr(getattr(m, "config", None), "_attn_implementation", ""))
        for m in workload.module.modules()
    }
    if "eager" in implementations:
        notes.append(
            "attention: the model computes it step by step (math), as eager attention does there too"
        )
    return tuple(notes)


def _drawn(tasks: list[trace.Task], begin: int) -> tuple[Drawn, ...]:
    return tuple(
        Drawn(
            stream=t.stream,
            name=t.name,
            start_ns=t.start_ns - begin,
            end_ns=t.end_ns - begin,
            met_ns=t.met_ns - begin if t.met_ns else 0,
            bytes=t.bytes,
        )
        for t in tasks[:TIMELINE_MAX]
    )


def _host_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
