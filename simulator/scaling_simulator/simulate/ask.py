"""The simulation that a worker is asked for, at one world size.

What a simulation leans on: the device's rates, kernel times, and what makes real ranks slower.

How a worker process of its own is asked: a question as JSON on its input, an answer on its output.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from scaling import resources
from scaling.analysis.statistics.rounds import latest
from scaling.errors import InputError, ScalingError
from scaling.hardware.devices import MAKERS, peak_flop_s
from scaling.records import files
from scaling.settings.parallel import Mesh, MeshError, Parallel
from scaling.settings.run import Spec
from scaling.settings.topology import Topology
from scaling_simulator.simulate import links
from scaling_simulator.simulation import Chip, KernelTimes, LinkCurve, Physics, Simulated, Simulation

FLOP_SHARE, MEMORY_SHARE = 0.6, 0.8
"""Share of a data sheet's rates that kernels are taken to reach where nothing was measured: matrix products in large
language models on H100 reach 0.55 to 0.7 of the sheet's peak (llm-foundry's and torchtitan's published MFU lie between
0.35 and 0.55 with everything else in it), streaming kernels about 0.8 of the memory's."""
LAUNCH_US, KERNEL_US = 5.0, 2.0
"""What a launch costs the host, and any kernel the device, where nothing was measured."""
HOST_BYTES_S = 25e9
"""Between host and device, PCIe 4.0 x16."""
LIMIT_S = 600
"""Time limit of one simulation: 70 billion parameters over thousands of ranks take about half a minute."""
RESERVED = 0.95
"""Share of the memory that tensors can have: the rest is the driver's, the context's and the communicators'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A factor or rate with what it may be at the least and at the most."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        """The same range, scaled."""
        return Range(value=self.value * factor, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything but the program and the links."""

    chip: Chip
    capacity_bytes: int
    kernels: KernelTimes
    launch_us: float = LAUNCH_US
    host_bytes_s: float = HOST_BYTES_S
    slowdown: Range | None = None
    """Of kernels while communication runs."""
    neighbours: Range | None = None
    """By how much kernels take longer where all ranks of a host compute."""
    persistent: Range | None = None
    """Standard deviation over ranks of a step's compute, relative: what lasts a step or longer."""
    walk: Range | None = None
    """What kernels of different ranks differ by after t ns: walk x sqrt(t) ns, standard deviation."""
    notes: tuple[str, ...] = field(default=())
    missing: tuple[str, ...] = field(default=())

    @property
    def upper_bound(self) -> bool:
        """Whether something that makes real clusters slower is left out."""
        return bool(self.missing)


_GB = 10**9
_MEMORY: tuple[tuple[str, int, float], ...] = (
    (r"V100-SXM\d-16GB", 16 * _GB, 900e9),
    (r"V100-SXM\d-32GB", 32 * _GB, 900e9),
    (r"A100-SXM4-40GB", 40 * _GB, 1555e9),
    (r"A100-SXM4-80GB", 80 * _GB, 2039e9),
    (r"A100-PCI[Ee]-40GB", 40 * _GB, 1555e9),
    (r"A100 80GB PCIe", 80 * _GB, 1935e9),
    (r"L4", 24 * _GB, 300e9),
    (r"L40", 48 * _GB, 864e9),
    (r"L40S", 48 * _GB, 864e9),
    (r"H100 80GB HBM3", 80 * _GB, 3350e9),
    (r"H100 PCIe", 80 * _GB, 2000e9),
    (r"H100 NVL", 94 * _GB, 3900e9),
    (r"H200", 141 * _GB, 4800e9),
    (r"B200", 180 * _GB, 7700e9),
    (r"GeForce RTX 4090", 24 * _GB, 1008e9),
    (r"Instinct MI300X.*", 192 * _GB, 5300e9),
)
"""Bytes of a device's memory, and bytes/s that it moves at the most; scaling/hardware/devices.py names the sheets."""


def _memory_of(device_name: str) -> tuple[int, float] | None:
    """(bytes, bytes/s) of a device's memory by its data sheet; None where the device is not known."""
    for name, size, rate in _MEMORY:
        if re.fullmatch(f"{MAKERS}(?:{name})", device_name):
            return size, rate
    return None


def sheet(topology: Topology, precision: str) -> tuple[Chip, int]:
    """A device's rates and memory as its data sheet has them. InputError where the device is not known."""
    name = topology.accelerator
    if not name:
        raise InputError(
            f"topology={topology.name}: its devices are not named, so their rates are not known; use a machine such as "
            "topology=simulated_hgx_h100, or give topology.accelerator='NVIDIA H100 80GB HBM3'"
        )
    memory, peak, fp32 = _memory_of(name), peak_flop_s(name, precision), peak_flop_s(name, "fp32")
    if memory is None or peak is None or fp32 is None:
        raise InputError(
            f"topology.accelerator={name}: no data sheet of it is known for precision={precision} "
            "(scaling/hardware/devices.py)"
        )
    fp32 = peak if precision == "tf32" else fp32
    return Chip(
        name=name, flop_s=peak, flop_s_fp32=fp32, memory_bytes_s=memory[1], kernel_us=KERNEL_US
    ), memory[0]


def assumed(topology: Topology, precision: str) -> Inputs:
    """Inputs without a run: the device's data sheet at an efficiency that is said."""
    peak, memory = sheet(topology, precision)
    chip = Chip(
        name=peak.name,
        flop_s=peak.flop_s * FLOP_SHARE,
        flop_s_fp32=peak.flop_s_fp32 * FLOP_SHARE,
        memory_bytes_s=peak.memory_bytes_s * MEMORY_SHARE,
        kernel_us=peak.kernel_us,
    )
    return Inputs(
        chip=chip,
        capacity_bytes=int(memory * RESERVED),
        kernels=KernelTimes(chip=None),
        notes=(
            f"kernels: an assumption, {FLOP_SHARE:.0%} of {peak.flop_s / 1e12:.4g} TFLOP/s ({precision}) and "
            f"{MEMORY_SHARE:.0%} of {peak.memory_bytes_s / 1e12:.3g} TB/s, data sheet of {peak.name}",
            f"host: {LAUNCH_US:g} us a launch, {KERNEL_US:g} us a kernel at the least, both assumptions",
            f"memory: {RESERVED:.0%} of {memory / 1e9:.0f} GB for tensors; no fragmentation",
        ),
        missing=(
            "how much ranks differ (the slowest of n holds up the others)",
            "how much communication slows kernels down",
            "congestion of the network",
        ),
    )


EXPECTED, FAVOURABLE, UNFAVOURABLE = "expected", "favourable", "unfavourable"
CAUSES = ("persistent", "walk", "neighbours", "slowdown")
"""Fields of Inputs that make ranks slower."""
ALIKE, UNDISTURBED, UNCROWDED, UNDELAYED = "ranks alike", "undisturbed", "uncrowded", "undelayed"
"""Physics of the waterfall. Each has one cause less than the one before: spread of ranks, slowdown by communication,
neighbours, latency."""


def mesh_of(parallel: Parallel, world_size: int) -> Mesh:
    """The mesh of a strategy at a world size. InputError where its degrees do not fit."""
    try:
        return parallel.mesh(world_size)
    except MeshError as error:
        raise InputError(f"parallel={parallel.name}: {error}") from error


def batch_of(spec: Spec, mesh: Mesh) -> int:
    """Samples a rank and step; the ranks that share a layer see the same ones. InputError where they do not divide."""
    if spec.mode == "weak":
        return spec.batch_per_rank
    whole, ranks = spec.global_batch or 0, mesh.data_parallel
    if whole % ranks:
        raise InputError(f"global_batch={whole}: does not divide by {ranks} ranks with different samples")
    return whole // ranks


def simulation(
    spec: Spec,
    mesh: Mesh,
    inputs: Inputs,
    batch: int,
    *,
    rank: int = 0,
    own_links: tuple[LinkCurve, ...] | None = None,
    whole: bool = True,
) -> Simulation:
    """What a worker is asked for. `own_links`: curves that a run measured, in place of the topology's.

    `whole`: with intervals and the causes of the loss, else the expected step alone.
    """
    return Simulation(
        spec=spec,
        rank=rank,
        batch=batch,
        mesh=mesh,
        chip=inputs.chip,
        capacity_bytes=inputs.capacity_bytes,
        host_bytes_s=inputs.host_bytes_s,
        launch_us=inputs.launch_us,
        kernels=inputs.kernels,
        physics=_physics(spec.topology, mesh, inputs, own_links, whole=whole and mesh.size > 1),
        timeline=whole and mesh.size > 1,
    )


def _physics(
    topology: Topology, mesh: Mesh, inputs: Inputs, given: tuple[LinkCurve, ...] | None, *, whole: bool
) -> tuple[Physics, ...]:
    axes = mesh.dimensions
    doubt, factor = (0.0, 1.0) if given is not None or not axes else links.doubts(topology, axes)
    last = latest(mesh.size)

    def setting(
        name: str, causes: Mapping[str, float], *, bandwidth: float = 1, latency: float = 1
    ) -> Physics:
        curves = (
            given if given is not None else links.curves(topology, axes, bandwidth=bandwidth, latency=latency)
        )
        crowd = causes["neighbours"] if mesh.size > 1 else 0.0
        return Physics(
            name=name,
            links=curves,
            wires=links.shared(topology, axes),
            slowdown=causes["slowdown"],
            stretch=(1 + last * causes["persistent"]) * (1 + crowd),
            spread=last * causes["walk"],
        )

    def at(end: str) -> dict[str, float]:
        ranges = {cause: getattr(inputs, cause) for cause in CAUSES}
        return {c: 0.0 if span is None else max(0.0, getattr(span, end)) for c, span in ranges.items()}

    causes = at("value")
    expected = setting(EXPECTED, causes)
    if not whole:
        return (expected,)
    physics = [
        expected,
        setting(FAVOURABLE, at("low"), bandwidth=1 + doubt, latency=1 / factor),
        setting(UNFAVOURABLE, at("high"), bandwidth=1 - doubt, latency=factor),
    ]
    for name, without in (
        (ALIKE, ("persistent", "walk")),
        (UNDISTURBED, ("slowdown",)),
        (UNCROWDED, ("neighbours",)),
    ):
        changes = any(causes[cause] for cause in without)
        causes = {cause: 0.0 if cause in without else value for cause, value in causes.items()}
        if changes:
            physics.append(setting(name, causes))
    last_one = setting(UNDELAYED, causes, latency=0 if given is None else 1)
    physics.append(last_one if given is None else replace(last_one, links=undelayed(given)))
    return tuple(physics)


def undelayed(curves: tuple[LinkCurve, ...]) -> tuple[LinkCurve, ...]:
    """Measured curves without what the smallest message takes."""
    return tuple(
        replace(curve, points=tuple((size, max(0.0, us - curve.points[0][1])) for size, us in curve.points))
        for curve in curves
    )


def simulate(asked: Simulation) -> Simulated:
    """What a worker makes of a simulation. A program that fails is an answer; ScalingError where there is none."""
    what = f"the simulation of {asked.mesh.size} ranks"
    try:
        return answer("scaling_simulator.answer", asked, Simulated, what=what, limit_s=LIMIT_S)
    except TooLongError:
        return Simulated(failed=f"the simulation took longer than {LIMIT_S} s")


Answer = TypeVar("Answer")


class TooLongError(Exception):
    """There was no answer within the limit."""


def answer(module: str, request: Any, kind: type[Answer], *, what: str, limit_s: float) -> Answer:
    """The answer of `python -m module` to `request`, which it gets as JSON; errors call the request `what`.

    TooLongError after `limit_s`; InputError with its last line where it ends with status 2; ScalingError without an
    answer.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(files.encode(request)),
            capture_output=True,
            text=True,
            errors="replace",  # a library may print anything
            timeout=limit_s,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path(), "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise TooLongError from error
    try:
        return files.decode(kind, json.loads(done.stdout))
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        if lines and done.returncode == InputError.exit_code:
            raise InputError(lines[-1]) from None
        reason = lines[-1] if lines and done.returncode >= 0 else _ended(done.returncode)
        raise ScalingError(f"{what} gave no answer: {reason}") from None


def _ended(status: int) -> str:
    """How a process ended, by its exit status."""
    if status >= 0:
        return f"it ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    memory = ", as the kernel does where memory runs out" if -status == signal.SIGKILL else ""
    return f"it was ended by {name}{memory}"
