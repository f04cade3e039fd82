"""What simulated steps mean: efficiency, where the rest goes, and how far both may be off."""

from __future__ import annotations

from collections.abc import Mapping

from scaling.analysis.results import Loss, Measured
from scaling.settings.parallel import Mesh
from scaling.settings.run import Spec
from scaling_simulator.simulate.ask import (
    ALIKE,
    EXPECTED,
    FAVOURABLE,
    UNCROWDED,
    UNDELAYED,
    UNDISTURBED,
    UNFAVOURABLE,
)
from scaling_simulator.simulate.results import SimulatedPoint, SimulatedTransfers
from scaling_simulator.simulation import Simulated, Step

NS_MS = 1e6
UNLIKE = 0.01
"""How far the steps of two ranks may lie apart: shards of parameters are not always equal."""


def point(
    spec: Spec,
    mesh: Mesh,
    batch: int,
    simulated: Simulated,
    base: tuple[Simulated, Mesh, int] | None,
    capacity_bytes: int,
    usd_per_gpu_hour: float | None = None,
) -> SimulatedPoint:
    """One world size; `base`: simulation, mesh and batch of a rank at the size that efficiency is counted from."""
    n = mesh.size
    facts = {
        "world_size": n,
        "hosts": -(-n // spec.topology.ranks_per_host),
        "strategy": spec.parallel.name if n > 1 else "single",
        "replicate": mesh.replicate,
        "shard": mesh.shard,
        "tensor": mesh.tensor,
        "batch": batch,
        "capacity_bytes": capacity_bytes,
    }
    if simulated.failed is not None or simulated.memory is None:
        status = "oom" if simulated.out_of_memory else "failed"
        fits = False if simulated.out_of_memory else None
        return SimulatedPoint(**facts, status=status, why=simulated.failed, fits=fits)  # type: ignore[arg-type]
    steps = {step.physics: step for step in simulated.steps}
    step = steps[EXPECTED]
    ends = [steps[name].step_ns for name in (FAVOURABLE, UNFAVOURABLE) if name in steps]
    step_ms = _between(step.step_ns / NS_MS, [ns / NS_MS for ns in ends])
    samples = batch * mesh.data_parallel
    rate = _between(samples / (step.step_ns / 1e9), [samples / (ns / 1e9) for ns in ends])
    efficiency = loss = None
    if base is not None and base[0].steps:
        of_base = _rate(base[0].steps[0], base[2], base[1])
        efficiency = _between(
            _rate(step, batch, mesh) / of_base,
            [batch * mesh.data_parallel / n / (ns / 1e9) / of_base for ns in ends],
        )
        loss = _loss(steps, base, efficiency.value) if base[1].size == 1 and n > 1 else None
    return SimulatedPoint(
        **facts,  # type: ignore[arg-type]
        status="simulated",
        fits=True,
        step_ms=step_ms,
        samples_per_s=rate,
        efficiency=efficiency,
        loss=loss,
        compute_ms=step.compute_ns / NS_MS,
        exposed_ms=step.exposed_ns / NS_MS,
        idle_ms=step.idle_ns / NS_MS,
        transfers=tuple(
            SimulatedTransfers(
                kind=t.kind,
                axis=_axis(t.group, mesh),
                calls=t.calls,
                bytes=t.bytes,
                busy_ms=t.busy_ns / NS_MS,
                exposed_ms=t.exposed_ns / NS_MS,
            )
            for t in step.transfers
        ),
        memory=simulated.memory,
        usd_per_million_samples=None
        if usd_per_gpu_hour is None
        else usd_per_gpu_hour * n / 3600 * 1e6 / (samples / (step.step_ns / 1e9)),
    )


def _rate(step: Step, batch: int, mesh: Mesh) -> float:
    """Samples a second and rank."""
    return batch * mesh.data_parallel / mesh.size / (step.step_ns / 1e9)


def _axis(group: str, mesh: Mesh) -> str:
    if group.startswith("mesh_"):
        return group.removeprefix("mesh_")
    return mesh.dimensions[0].name if len(mesh.dimensions) == 1 else "world"


def _between(value: float, ends: list[float]) -> Measured:
    """The value with what it is at the inputs' ends; both lie around it."""
    if not ends:
        return Measured(value)
    return Measured(value, min(value, *ends), max(value, *ends))


def _loss(steps: Mapping[str, Step], base: tuple[Simulated, Mesh, int], efficiency: float) -> Loss:
    """1 - efficiency by cause, each as a measured waterfall has it (docs/method.md).

    A late rank costs the step minus the step of ranks that are alike. Neighbours and communication cost the time of
    kernels that they add, even where the step would be no shorter without, because it waits for a transfer then. The
    link costs what is exposed of its transfers, divided by the share of their time that is latency. With equal batches
    a rank's step alone is the base's; else it is scaled to the samples (tensor parallel, strong).
    """
    expected, alone = steps[EXPECTED], base[0].steps[0]
    total = expected.step_ns
    alike = steps.get(ALIKE, expected)
    undisturbed = steps.get(UNDISTURBED, alike)
    uncrowded = steps.get(UNCROWDED, undisturbed)
    latency = alike.exposed_ns * _latency_share(uncrowded, steps.get(UNDELAYED))
    cost = {
        "straggler": total - alike.step_ns,
        "overlap": alike.compute_ns - undisturbed.compute_ns,
        "neighbours": undisturbed.compute_ns - uncrowded.compute_ns,
        "link_latency": latency,
        "link_bandwidth": alike.exposed_ns - latency,
        "host": alike.idle_ns - alone.idle_ns,
    }
    cost["strategy_overhead"] = total * (1 - efficiency) - sum(cost.values())
    return Loss(**{cause: Measured(ns / total) for cause, ns in cost.items()})


def _latency_share(step: Step, undelayed: Step | None) -> float:
    """Share of the transfers' time that is gone where links have no latency."""
    sent = _sent_ns(step)
    return 0.0 if undelayed is None or not sent else min(1.0, max(0.0, 1 - _sent_ns(undelayed) / sent))


def _sent_ns(step: Step) -> int:
    """Time of a step's transfers, without their waits for the last rank."""
    return sum(t.busy_ns - t.waited_ns for t in step.transfers)


def unlike(first: Simulated, last: Simulated) -> str | None:
    """How two ranks of a world differ, where one cannot stand for the other; None where it can."""
    if first.digest != last.digest:
        return "make different transfers"
    first_ns, last_ns = first.steps[0].step_ns, last.steps[0].step_ns
    if abs(first_ns / last_ns - 1) > UNLIKE:
        return f"take different steps ({first_ns / NS_MS:.4g} and {last_ns / NS_MS:.4g} ms)"
    return None
