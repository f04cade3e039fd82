"""What collectives reach on others' machines, to hold one's own figure against. Pure; never a verdict by itself.

Figures are busbw of nccl-tests (of rccl-tests for AMD) as published, in GB/s: facts of logs and threads, each with its
source. NVLS (reduction in NVSwitches) lifts the busbw of an all-reduce above what the links carry. Between hosts the
network cards decide, so reports are held beside a figure of the same cards, or their range is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from scaling.analysis.network import nccl_causes
from scaling.analysis.network.nccl_log import Cards
from scaling.analysis.results import Fabric
from scaling.settings.run import Spec
from scaling.units import format_bytes

SHARED = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""busbw / algbw over (n-1)/n, for collectives in which each rank keeps its own part."""
WHOLE = ("broadcast", "reduce", "gather", "scatter", "send", "recv", "send_recv")
"""Collectives whose busbw is their algbw."""


def bus_factor(world_size: int, collective: str = "all_reduce") -> float:
    """busbw / algbw of a collective (nccl-tests, doc/PERFORMANCE.md). KeyError for other names."""
    return 1.0 if collective in WHOLE else SHARED[collective] * (world_size - 1) / world_size


GIB, MIB = 2**30, 2**20
WITHIN = 8
"""Reports of sizes up to so many times smaller or larger are held beside a figure."""


@dataclass(frozen=True, slots=True)
class Reached:
    """One report."""

    machine: str
    gpus: int
    hosts: int
    collective: str
    bytes: int | None
    """None where the source does not tell the size of its best figure; taken for a large one."""
    busbw_gb_s: float
    source: str
    nvls: bool = False
    cards: Cards | None = None
    """Those of each host; None where the source does not tell, or where NVLink joins the hosts."""
    direct: bool = False
    """The source says that GPUDirect RDMA was on."""
    by_cards: bool = False
    """Between hosts, over the network."""


_SHORT = {
    "AZURE": "Azure/AI-benchmarking-guide, Azure_Results",
    "ALPS": "boeschf/nccl-benchmark-on-alps-2025, 2.23.4-1",
    "OCI": "oracle-quickstart/oci-hpc-oke, docs",
}
_REPORTS = """
32 x V100 SXM | 4 | 1x100G | all_reduce | 512 MiB | 12.2 | - | 2.4.7 | NVIDIA/nccl-tests#29
2 x RTX 2080 Ti | 1 | - | all_reduce | 128 MiB | 21.86 | - | - | NVIDIA/nccl-tests#44, NVLink bridge
2 x A100 PCIe | 1 | - | all_reduce | 1 MiB | 10.72 | - | - | thomaslie210/NCCL_Test_Results, between sockets
2 x A100 PCIe | 1 | - | all_reduce | 12 GiB | 208 | - | - | NVIDIA/nccl-tests#178, NVLink bridge
3 x A100 PCIe | 1 | - | all_reduce | 12 GiB | 20 | - | - | NVIDIA/nccl-tests#178, beyond the NVLink bridge
8 x A100 SXM | 1 | - | all_reduce | 8 GiB | 235.26 | - | - | microsoft/superbenchmark, tests/data
8 x A100 SXM | 1 | - | all_reduce | 8 GiB | 231.58 | - | 2.18.5 | AZURE/ND_A100_v4
8 x A100 SXM | 1 | - | all_reduce | 4 GiB | 232.54 | - | - | NVIDIA/nccl-tests#175
8 x A100 SXM | 1 | - | all_reduce | 1 GiB | 200 | - | 2.18.1 | NVIDIA/nccl-tests#149, rounded
8 x A100 SXM | 1 | - | all_to_all | 8 GiB | 226.16 | - | - | microsoft/superbenchmark, tests/data
8 x A100 SXM | 1 | - | broadcast | 8 GiB | 234.7 | - | - | microsoft/superbenchmark, tests/data
16 x A100 SXM | 2 | 2x200G | all_reduce | 1 GiB | 57.06 | - | 2.10.3 | NVIDIA/nccl#837
16 x A100 SXM | 2 | 4x100G | all_reduce | 1 GiB | 57.2 | - | 2.9.9 | NVIDIA/nccl#527, EFA
16 x A100 SXM | 2 | 4x200G | all_reduce | - | 86 | - | - | NVIDIA/nccl-tests#175
16 x A100 SXM | 2 | 8x100G | all_reduce | - | 75 | - | 2.7 | NVIDIA/nccl#495, RoCE
16 x A100 SXM | 2 | 8x200G | all_reduce | - | 192 | - | - | NVIDIA/nccl#812, a maintainer, ring
16 x A100 SXM | 2 | 16x100G | all_reduce | 4 GiB | 188.5 | - | 2.29.3 | OCI/running-nccl-tests-from-slurm
16 x A100 SXM | 2 | 16x100G | all_reduce | 10 GiB | 180.08 | - | 2.14.3 | OCI/running-rdma-workloads-on-oke-h100
16 x A100 SXM | 2 | 16x100G | all_reduce | 8 GiB | 237.94 | - | - | OCI
24 x A100 SXM | 3 | 4x200G | all_reduce | 128 MiB | 96 | - | - | NVIDIA/nccl-tests#119
32 x A100 SXM | 8 | 2x200G | all_reduce | 1 GiB | 36.6 | - | 2.18 | argonne-lcf/alcf-nccl-tests, Slingshot
2 x H100 PCIe | 1 | - | all_reduce | 4 GiB | 116.34 | - | - | NVIDIA/nccl#1161, NVLink bridge
8 x H100 SXM | 1 | - | all_reduce | 8 GiB | 480.16 | NVLS | - | NVIDIA/dgxc-benchmarking, nccl/README
8 x H100 SXM | 1 | - | all_reduce | 8 GiB | 478.87 | NVLS | 2.18.5 | AZURE/ND_H100_v5
8 x H100 SXM | 1 | - | all_reduce | - | 476 | NVLS | - | NVIDIA/nccl-tests#290
8 x H100 SXM | 1 | - | all_gather | - | 370 | - | - | NVIDIA/nccl-tests#212, a maintainer, rounded
16 x H100 SXM | 2 | 32x100G | all_reduce | 2 GiB | 437.89 | NVLS | - | aws-samples/awsome-distributed-training, EFA
16 x H100 SXM | 2 | 8x400G GDR | all_reduce | 16 GiB | 469.21 | NVLS | - | NVIDIA/nccl-tests#309
16 x H100 SXM | 2 | 8x200G | all_reduce | 8 GiB | 338.82 | - | - | lessizzmore/create-a3mega-ztan-fork, GCP A3 Mega
8 x H100 SXM | 2 | 4x200G GDR | all_reduce | 4 GiB | 97.37 | - | - | NVIDIA/nccl-tests#252, ring
2 x H100 SXM | 2 | 4x400G | all_reduce | 16 GiB | 50 | - | - | NVIDIA/nccl-tests#232, rounded, one GPU a host
40 x H100 SXM | 5 | 4x400G | all_reduce | 1 GiB | 190 | - | 2.20 | NVIDIA/nccl#1368, rounded, ring
8 x H800 SXM | 1 | - | all_reduce | - | 215 | NVLS | - | NVIDIA/nccl#1374
8 x H200 SXM | 1 | - | all_reduce | 8 GiB | 479.98 | NVLS | 2.20.5 | AZURE/ND_H200_v5
8 x H200 SXM | 1 | - | all_reduce | 16 GiB | 480.7 | NVLS | 2.30.7 | stas00/ml-engineering, network/benchmarks
8 x H200 SXM | 1 | - | all_reduce | 4 GiB | 475 | NVLS | 2.20.3 | NVIDIA/nccl-tests#272
8 x GH200 | 2 | 4x200G | all_reduce | 4 GiB | 152.22 | - | 2.23.4 | ALPS, Slingshot
128 x GH200 | 32 | 4x200G | all_reduce | 128 MiB | 49.14 | - | 2.23.4 | ALPS, with a cliff above
512 x GH200 | 128 | 4x200G | all_reduce | 4 GiB | 89.24 | - | 2.23.4 | ALPS, with a hole at 2 GiB
2 x GB10 | 2 | 2x100G | all_gather | 16 GiB | 20.95 | - | 2.28.3 | NVIDIA/dgx-spark-playbooks#25, one port of 200 Gbit/s
8 x B200 | 1 | - | all_reduce | 16 GiB | 838.97 | NVLS | - | stas00/ml-engineering, network/benchmarks
8 x B200 | 1 | - | all_reduce | - | 830 | NVLS | 2.27.1 | NVIDIA/nccl#1807, rounded
32 x B200 | 4 | - | all_reduce | 16 GiB | 376.71 | - | - | stas00/ml-engineering, network/benchmarks
4 x GB200 | 1 | - | all_reduce | 8 GiB | 679.61 | - | 2.25.1 | AZURE/ND_GB200_v6, ring
72 x GB200 | 18 | NVLink | all_reduce | 8 GiB | 846.82 | NVLS | - | coreweave/nccl-tests PR#43, one NVL72
2 x RTX 4090 | 1 | - | all_reduce | 1 GiB | 2.24 | - | - | kalavai-net/kalavai-client, no peer access
4 x RTX 5090 | 1 | - | all_reduce | 8 GiB | 35 | - | - | NVIDIA/nccl#1639, rounded
8 x RTX 5090 | 1 | - | all_reduce | 8 GiB | 28 | - | - | NVIDIA/nccl#1639, rounded
8 x MI300X | 1 | - | all_reduce | 8 MiB | 161.14 | - | - | crickett-hpe/hpc-ai-envs PR#30
"""
"""GPUs, hosts, network cards of each host, collective, size, busbw, NVLS, version of NCCL, source; `-`: not told."""


def _reached(line: str) -> Reached:
    gpus, hosts, network, collective, size, busbw, nvls, _nccl, source = line.split(" | ")
    count, _, machine = gpus.partition(" x ")
    number, _, unit = size.partition(" ")
    return Reached(
        machine,
        int(count),
        int(hosts),
        collective,
        None if size == "-" else int(number) * {"GiB": GIB, "MiB": MIB}[unit],
        float(busbw),
        re.sub(r"^(AZURE|ALPS|OCI)", lambda short: _SHORT[short[0]], source),
        nvls == "NVLS",
        Cards.of(network),
        network.endswith(" GDR"),
        int(hosts) > 1 and network != "NVLink",
    )


TABLE = tuple(map(_reached, _REPORTS.strip().splitlines()))
_MACHINES = (
    (r"V100-SXM|V100 SXM", "V100 SXM"),
    (r"2080 Ti", "RTX 2080 Ti"),
    (r"A100.*PCIE?\b|A100.*PCIe", "A100 PCIe"),
    (r"A100", "A100 SXM"),
    (r"H100 (PCIe|NVL)", "H100 PCIe"),
    (r"GH200", "GH200"),
    (r"H100", "H100 SXM"),
    (r"H800", "H800 SXM"),
    (r"H200 NVL", "H200 NVL"),
    (r"H200", "H200 SXM"),
    (r"GB200", "GB200"),
    (r"\bB200", "B200"),
    (r"GB10\b", "GB10"),
    (r"RTX 4090", "RTX 4090"),
    (r"RTX 5090", "RTX 5090"),
    (r"MI300X", "MI300X"),
)
"""A device's name as drivers print it, and the machine in the table: the first that matches."""


def machine_of(device: str) -> str | None:
    """The table's name of a device's machine."""
    return next((machine for pattern, machine in _MACHINES if re.search(pattern, device)), None)


def like(device: str, gpus: int, hosts: int, collective: str, size_bytes: int) -> tuple[Reached, ...]:
    """Reports of the same machine, GPUs, hosts and collective at a size like this one."""
    machine = machine_of(device)
    return tuple(
        r
        for r in TABLE
        if (r.machine, r.gpus, r.hosts, r.collective) == (machine, gpus, hosts, collective)
        and size_bytes <= WITHIN * (r.bytes or 8 * GIB)
        and (r.bytes or 8 * GIB) <= WITHIN * size_bytes
    )


HALF = 0.5
"""Below this share of what others reach, a cause that NCCL names is said with it."""


def beside(
    device: str,
    gpus: int,
    hosts: int,
    collective: str,
    size_bytes: int,
    busbw_gb_s: float,
    causes: Sequence[str] = (),
    cards: Cards | None = None,
) -> str | None:
    """One's own figure beside what others reach, in words; None where the table has no such machine.

    `causes`: what NCCL's log says of slow ways, with the remedy. `cards`: one's own, of each host; where they are not
    known, or where the table has others, the range is shown without a share.
    """
    reports, alike = _with_cards(like(device, gpus, hosts, collective, size_bytes), cards)
    if not reports:
        return None
    figures = [r.busbw_gb_s for r in reports]
    share = busbw_gb_s / (median(figures) if alike else min(figures))
    why = f"; less than half, and NCCL's log says why: {'; '.join(causes)}" if share < HALF and causes else ""
    yours = f"yours: {busbw_gb_s:.4g} at {format_bytes(size_bytes)}"
    yours += f", {share:.0%} of it" if alike else ""
    return f"{_reach(reports, cards, alike)}; {yours} ({_sources(reports)}){why}"


def _with_cards(reports: Sequence[Reached], cards: Cards | None) -> tuple[Sequence[Reached], bool]:
    """Reports with such cards, and whether their figures are for such cards alone; all where the table has none."""
    over = [r for r in reports if r.by_cards]
    same = [r for r in over if cards is not None and r.cards is not None and cards.alike(r.cards)]
    return (same or reports), not over or len({r.cards.together for r in same if r.cards}) == 1


def _reach(reports: Sequence[Reached], cards: Cards | None, alike: bool) -> str:
    """`others reach 478.9 (476 to 480.2, 3 reports) GB/s in all_reduce on 8 x H100 SXM with NVLS`."""
    first, figures = reports[0], sorted(r.busbw_gb_s for r in reports)
    span = f" ({figures[0]:.4g} to {figures[-1]:.4g}, {len(figures)} reports)" if len(figures) > 1 else ""
    where = f"{first.gpus} x {first.machine}" + ("" if first.hosts == 1 else f" on {first.hosts} hosts")
    nvls = " with NVLS" if all(r.nvls for r in reports) else ""
    if alike:
        kinds = " or ".join(dict.fromkeys(str(r.cards) for r in reports if r.cards))
        network = f", {kinds} a host" if kinds else ""
        return (
            f"others reach {median(figures):.4g}{span} GB/s in {first.collective} on {where}{nvls}{network}"
        )
    each: dict[str, list[float]] = {}
    for r in sorted(reports, key=lambda r: r.busbw_gb_s):
        each.setdefault(str(r.cards or "cards that are not told"), []).append(r.busbw_gb_s)
    by_cards = (
        " to ".join(dict.fromkeys(f"{x:.4g}" for x in (f[0], f[-1]))) + f" with {n}" for n, f in each.items()
    )
    mine = "yours are not known" if cards is None else f"yours are {cards}"
    return (
        f"others reach {', '.join(by_cards)} (GB/s in {first.collective} on {where}{nvls}): the network cards of each "
        f"host decide, and {mine}"
    )


def _sources(reports: Sequence[Reached]) -> str:
    return "; ".join(dict.fromkeys(r.source for r in reports))


def expected(device: str, gpus: int, hosts: int, cards: Cards | None = None) -> tuple[str, ...]:
    """What others reach on such a machine with large messages, a line a collective."""
    large = [r for r in TABLE if (r.gpus, r.hosts) == (gpus, hosts) and (r.bytes or GIB) >= GIB]
    mine = [r for r in large if r.machine == machine_of(device)]
    each = ([r for r in mine if r.collective == name] for name in dict.fromkeys(r.collective for r in mine))
    chosen = (_with_cards(reports, cards) for reports in each)
    return tuple(f"{_reach(reports, cards, alike)} ({_sources(reports)})" for reports, alike in chosen)


def cards_of(spec: Spec) -> Cards | None:
    """The network cards that a topology gives each host."""
    rates = {nic.rate_bit_s for nic in spec.topology.nics}
    rate = rates.pop() if len(rates) == 1 else None
    return Cards(len(spec.topology.nics), rate and round(rate / 1e9)) if spec.topology.nics else None


def beside_best(
    device: str,
    points: Iterable[tuple[str, int, int, int, float]],
    causes: Sequence[str] = (),
    cards: Cards | None = None,
) -> tuple[str, ...]:
    """`beside` for the best size of each collective, number of GPUs and hosts, of those that the table has.

    `points`: collective, GPUs, hosts, bytes, busbw in GB/s.
    """
    best = {
        point[:3]: point
        for point in sorted(points, key=lambda point: point[4])
        if like(device, point[1], point[2], point[0], point[3])
    }
    texts = (
        beside(device, gpus, hosts, collective, size, busbw, causes, cards)
        for collective, gpus, hosts, size, busbw in best.values()
    )
    return tuple(text for text in texts if text is not None)


def beside_runs(fabric: Fabric, device: str, spec: Spec) -> tuple[str, ...]:
    """`beside` for the best size of each collective that a run has swept at each world size."""
    causes = nccl_causes.warnings(fabric, spec)
    return tuple(
        text
        for level in fabric.levels
        for text in beside_best(
            device,
            [
                (
                    point.collective,
                    level.world_size,
                    len(spec.topology.shares(level.world_size)),
                    point.bytes,
                    point.busbw_gbit_s.value / 8,
                )
                for point in level.curve
            ],
            causes,
            cards_of(spec),
        )
    )
