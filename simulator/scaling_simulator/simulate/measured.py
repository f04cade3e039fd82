"""What a run measured, as inputs of a simulation: kernel times, slowdown under communication, spread of ranks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

from scaling.analysis.decompose.kernels import idle_share
from scaling.analysis.decompose.roofline import EXPLAINS
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.network import curve
from scaling.analysis.network.curve import Hops, ring_times
from scaling.analysis.predict.change import Linked
from scaling.analysis.predict.fabrics import Links, inside_fabric, measured_fabric, named_fabric
from scaling.analysis.predict.sources import inside_one_host, measured_link
from scaling.analysis.results import Analysis
from scaling.analysis.statistics.rounds import UnknownQuantityError
from scaling.cli.loaded import Run, has_records, sources_of
from scaling.errors import InputError
from scaling.records.checkup import COPY, LAUNCH, MATMUL, KernelTable, Roofline
from scaling.records.tables import Tables
from scaling.settings.parallel import Mesh, Parallel
from scaling.settings.topology import Topology
from scaling_simulator.simulate import arms
from scaling_simulator.simulate.ask import HOST_BYTES_S, LAUNCH_US, RESERVED, Inputs, Range, sheet
from scaling_simulator.simulate.links import SIZES
from scaling_simulator.simulate.placed import place
from scaling_simulator.simulation import Chip, KernelTimes, LinkCurve

HOST_CAPACITY_BYTES = 2**40
"""A CPU's ranks share the host's memory, which a simulation does not limit."""
UNKNOWN_S = 1e10
"""FLOP/s and bytes/s of a device where neither ceilings nor kernels say them."""
SUM_OFF = 0.1
"""How far the sum of kernel times may lie from the step before it is warned of."""


def inputs(
    table: KernelTable | None,
    roofline: Roofline | None,
    analysis: Analysis,
    tables: Tables,
    home: Topology,
    asked: Topology,
    device_name: str | None,
    *,
    batch: int | None,
) -> Inputs:
    """Everything that a run gives for a simulation on `asked`; `home` is its topology. InputError without kernels.

    `batch`: samples of a rank's step in the run's arms, where that is the same at every world size.
    """
    if table is None:
        raise InputError(
            f"{analysis.run.id}: has no kernel times (kernels-0.json); measure it again with this version, or simulate "
            "without a run: scaling run topology=simulated_hgx_h100"
        )
    elsewhere = bool(asked.accelerator) and asked.accelerator != (device_name or home.accelerator)
    ceilings = {ceiling.name: ceiling.best for ceiling in roofline.ceilings} if roofline is not None else {}
    on_cpu = home.device == "cpu"
    source = _measured_chip(ceilings, table, elsewhere=elsewhere)
    target, capacity = (
        sheet(asked, table.precision) if elsewhere else (source, _capacity(asked, table.precision))
    )
    alone = arms.alone_ns(analysis.points) if batch == table.batch else None
    times, notes = _times(table, source, on_cpu=on_cpu, alone_ns=alone)
    if not elsewhere:
        target = source
    ranks = arms.between_ranks(analysis.points, tables, home, asked, elsewhere=elsewhere)
    slowdown, spread, crowd = ranks.slowdown, ranks.spread, ranks.neighbours
    launch_us, of_launches = _launch_us(ceilings, table, alone, measured_cpu=on_cpu, elsewhere=elsewhere)
    missing = [
        *([] if slowdown else ["how much communication slows kernels down"]),
        *([] if crowd else ["what ranks of a host cost each other's compute"]),
        *([] if spread else ["how much ranks differ (the slowest of n holds up the others)"]),
        *([] if asked.name == home.name else ["congestion of the network"]),
    ]
    where = (
        f"scaled from {device_name or 'this CPU'} to {target.name} by a roofline of both"
        if elsewhere
        else "as measured"
    )
    return Inputs(
        chip=target,
        capacity_bytes=capacity,
        kernels=times,
        launch_us=launch_us,
        host_bytes_s=1e15 if on_cpu and not elsewhere else HOST_BYTES_S,
        slowdown=slowdown,
        neighbours=crowd,
        persistent=None if spread is None else spread[0],
        walk=None if spread is None else spread[1],
        notes=(
            f"kernels: {len(table.kernels)} operators and shapes of the run's step, {where}",
            *notes,
            f"host: {launch_us:.3g} us a launch{of_launches}",
            *(_sentence("kernels are slower while communication runs", slowdown)),
            *_sentence("kernels are slower where all ranks compute at once", crowd),
            *_differs(spread),
        ),
        missing=tuple(missing),
    )


def _sentence(what: str, span: Range | None) -> list[str]:
    return (
        [] if span is None else [f"{what}: {span.value:.1%} [{span.low:.1%}, {span.high:.1%}], from the run"]
    )


def _differs(spread: tuple[Range, Range] | None) -> list[str]:
    if spread is None:
        return []
    lasting, walk = spread
    over = [1e-6 * end * math.sqrt(1e8) for end in (walk.value, walk.low, walk.high)]
    return [
        *_sentence("ranks differ in compute, standard deviation, for a whole step", lasting),
        f"and within a step by {over[0]:.3g} ms [{over[1]:.3g}, {over[2]:.3g}] after 100 ms of kernels",
        "n ranks wait for the latest of n normal draws: a heavier tail than was sampled costs more",
    ]


def _measured_chip(best: Mapping[str, float], table: KernelTable, *, elsewhere: bool) -> Chip:
    """The ceilings that the run measured on its device; where it has none, the best that its kernels reached.

    A model without matrix products has no ceilings. InputError where times have to be scaled to another device then.
    """
    product = best.get(MATMUL + table.precision) or max(
        (v for k, v in best.items() if k.startswith(MATMUL)), default=0.0
    )
    moved = best.get(COPY, 0.0)
    if elsewhere and not (product and moved):
        raise InputError(
            "the run has no ceilings of its device (roofline-0.json), so its kernels cannot be scaled to another"
        )
    timed = [kernel for kernel in table.kernels if kernel.time_ns]
    moved = moved or max((1e9 * k.bytes / k.time_ns for k in timed if k.bytes), default=UNKNOWN_S)
    product = product or max((1e9 * k.flops / k.time_ns for k in timed if k.flops), default=UNKNOWN_S)
    return Chip(
        name="the run's device",
        flop_s=product,
        flop_s_fp32=best.get(MATMUL + "fp32", product),
        memory_bytes_s=moved,
        kernel_us=min((k.time_ns for k in timed), default=0) / 1e3,
    )


def _capacity(topology: Topology, precision: str) -> int:
    return int(sheet(topology, precision)[1] * RESERVED) if topology.accelerator else HOST_CAPACITY_BYTES


def _launch_us(
    best: Mapping[str, float],
    table: KernelTable,
    alone_ns: float | None,
    *,
    measured_cpu: bool,
    elsewhere: bool,
) -> tuple[float, str]:
    """The host's time for a launch, and what is said of it beyond that.

    The ceiling is that of launches in a tight loop. Where the device waits for the host in the run's step, that step is
    the host's time, with Python's and autograd's part: `alone_ns` over the whole run, else beside the table.
    """
    if measured_cpu:
        return LAUNCH_US if elsewhere else 0.0, ""
    ceiling_us = 1e6 / best[LAUNCH] if LAUNCH in best else LAUNCH_US
    idle, calls = idle_share(table), sum(kernel.calls for kernel in table.kernels)
    if idle is None or idle <= EXPLAINS:
        return ceiling_us, ""
    own_us = (alone_ns or table.step_ns) / calls / 1e3
    return max(ceiling_us, own_us), (
        f": the device waits for the host in {idle:.0%} of the run's step, so the step is the host's time"
    )


def _times(
    table: KernelTable, chip: Chip, *, on_cpu: bool, alone_ns: float | None = None
) -> tuple[KernelTimes, list[str]]:
    """The table for the simulated device, and what is said of it. On a CPU the operators' sum is made the step's.

    There the host runs them itself: what a step takes beyond them is shared by all, but for what a synthetic model
    sleeps, which it does in the simulation too. On a device it is the host's. The table has a few steps before the
    first round; `alone_ns` is the same step over the whole run, and kernels on a CPU are scaled to it.
    """
    calls = sum(kernel.calls for kernel in table.kernels)
    awake = max(1, table.step_ns - table.slept_ns)
    off = table.sum_ns / awake - 1
    beyond = (awake - table.sum_ns) / calls if on_cpu and off < 0 else 0.0
    scale = awake / table.sum_ns if off > 0 else 1.0
    asleep = f", which sleeps {table.slept_ns / 1e6:.4g} ms besides" if table.slept_ns else ""
    notes = [f"their sum is {1 + off:.1%} of the step without timed operators ({awake / 1e6:.4g} ms{asleep})"]
    if abs(off) > SUM_OFF and (on_cpu or off > 0):
        notes[0] += "; it was made to fit, which is an assumption"
    over = max(1.0, alone_ns - table.slept_ns) / awake if on_cpu and alone_ns else 1.0
    if over != 1:
        notes.append(f"they are scaled by {over:.3f}, to a rank's step alone over the whole run")
    us = {kernel.key: (kernel.time_ns * scale + beyond) * over / 1e3 for kernel in table.kernels}
    spent: dict[str, float] = {}
    least: dict[str, float] = {}
    for kernel in table.kernels:
        ideal = (
            max(kernel.flops / chip.flop_s, kernel.bytes / chip.memory_bytes_s) * 1e9 + chip.kernel_us * 1e3
        )
        for name in (kernel.operator, "*"):
            spent[name] = spent.get(name, 0.0) + kernel.calls * us[kernel.key] * 1e3
            least[name] = least.get(name, 0.0) + kernel.calls * ideal
    factors = {name: spent[name] / least[name] for name in spent if least[name] > 0}
    return KernelTimes(chip=chip, us=us, factors=factors), notes


def tables_of(run: Run) -> Tables:
    """All records of a run, as checked as its analysis has them."""
    return run._tables  # noqa: SLF001  not for users: the frozen API has the tables one by one


def links_of(run: Run) -> tuple[Linked, ...]:
    """The link of each measured world size: with the model's own buckets where those were replayed, else as swept."""
    sources = sources_of(run)
    return sources if sources or not has_records(run) else _swept(RunRecords(tables_of(run), run.plan))


def _swept(run: RunRecords) -> tuple[Linked, ...]:
    """The link of each world size above 1 that has a size sweep, from the launches that count."""
    links, plan = [], run.plan
    for trial in plan.trials:
        n = trial.world_size
        fabric = run.within(n).fabric
        swept = curve.sweep_rounds(curve.sweep_times(fabric, n), plan.spec.seed) if n > 1 else None
        with contextlib.suppress(UnknownQuantityError):
            if swept is not None:
                link = measured_link(swept[0].means().paired, plan, n, swept[1], ())
                links.append(Linked(world_size=n, link=link))
    return tuple(links)


def curves(asked: Topology, home: Topology, sources: Sequence[Linked], mesh: Mesh) -> tuple[LinkCurve, ...]:
    """Curves of a host's back end, from what the run measured: of each axis over the links that its ranks use.

    All groups of an axis communicate at once, so those that leave a host share its link.
    """
    n = mesh.size
    if n == 1 or not sources:
        return ()
    same = asked == home and any(s.world_size > 1 for s in sources)
    fabric = _inside(asked, home, sources, n)
    if fabric is None:
        fabric = measured_fabric(asked, sources) if same else named_fabric(asked, home, sources[-1], n)
    levels: list[Hops] = [level.part(slice(1)) for level in fabric.levels]
    whole = (tuple(range(n)),)
    ring = max(1.0, place(whole, asked).ring)  # what was measured is a ring over all ranks
    groups = {"*": whole, "default_pg": whole} | {f"mesh_{name}": sets for name, sets in mesh.axes().items()}
    listed = []
    for group, members in groups.items():
        placed = place(members, asked)
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
            rounds = 2 if kind == "all_reduce" else 1
            share = rounds * (placed.size - 1) / placed.size
            beside = placed.carried(kind, asked.backend) / ring if placed.across else 1.0
            sizes = [max(1.0, wire / share) for wire in SIZES]
            fixed, moved = ring_times(levels, placed.places, sizes, beside=beside)
            us = (fixed + moved)[0] * rounds / 2 / 1e3
            listed.append(
                LinkCurve(
                    group=group,
                    kind=kind,
                    points=tuple((wire, float(t)) for wire, t in zip(SIZES, us, strict=True)),
                )
            )
    return tuple(listed)


def _inside(asked: Topology, home: Topology, sources: Sequence[Linked], world_size: int) -> Links | None:
    """The link that the run measured within a host, for ranks that are all on one."""
    return inside_fabric(asked, home, sources) if inside_one_host(world_size, asked) else None


def inside_unknown(asked: Topology, home: Topology, sources: Sequence[Linked], mesh: Mesh) -> bool:
    """Whether some ranks share a host, and nothing says how they are joined there: `curves` takes the outer link."""
    if asked.ranks_per_host == 1 or asked.levels or place((tuple(range(mesh.size)),), asked).local == 1:
        return False
    if _inside(asked, home, sources, mesh.size) is not None:
        return False
    return asked != home or all(home.hosts_of(s.world_size) > 1 for s in sources)


def of_the_cores(parallel: Parallel, ran: Sequence[str]) -> str | None:
    """What is not known of a sharded strategy over a host's back end, where a run measured others; None: nothing."""
    if not parallel.sharded or parallel.name in ran:
        return None
    return (
        f"what {parallel.name} takes of the cores, with which Gloo sends: the run measured {', '.join(ran)}, and where "
        f"compute is real the step can be longer by a third (parallel={parallel.name} measured at 2 ranks tells)"
    )
