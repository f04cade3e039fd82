"""What collectives reach on others' machines, to hold one's own figure against. Pure; never a verdict by itself.

Figures are busbw of nccl-tests (of rccl-tests for AMD) as published, in GB/s: facts of logs and threads, each with its
source. NVLS (reduction in NVSwitches) lifts the busbw of an all-reduce above what the links carry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from scaling.analysis.network import nccl_log
from scaling.analysis.results import CurvePoint, Fabric
from scaling.settings.run import Spec
from scaling.units import format_bytes

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
    nccl: str = ""
    nvls: bool = False


_A100, _H100, _H200, _GH200 = "A100 SXM", "H100 SXM", "H200 SXM", "GH200"
_AZURE = "Azure/AI-benchmarking-guide, Azure_Results"
_ALPS = "boeschf/nccl-benchmark-on-alps-2025, 2.23.4-1"
TABLE = (
    Reached(
        "V100 SXM",
        32,
        4,
        "all_reduce",
        512 * MIB,
        12.2,
        "NVIDIA/nccl-tests#29, one 100 Gbit/s card a host",
        "2.4.7",
    ),
    Reached("RTX 2080 Ti", 2, 1, "all_reduce", 128 * MIB, 21.86, "NVIDIA/nccl-tests#44, NVLink bridge"),
    Reached("A100 PCIe", 2, 1, "all_reduce", MIB, 10.72, "thomaslie210/NCCL_Test_Results, between sockets"),
    Reached("A100 PCIe", 2, 1, "all_reduce", 12 * GIB, 208.0, "NVIDIA/nccl-tests#178, NVLink bridge"),
    Reached(
        "A100 PCIe", 3, 1, "all_reduce", 12 * GIB, 20.0, "NVIDIA/nccl-tests#178, beyond the NVLink bridge"
    ),
    Reached(_A100, 8, 1, "all_reduce", 8 * GIB, 235.26, "microsoft/superbenchmark, tests/data"),
    Reached(_A100, 8, 1, "all_reduce", 8 * GIB, 231.58, f"{_AZURE}/ND_A100_v4", "2.18.5"),
    Reached(_A100, 8, 1, "all_reduce", 4 * GIB, 232.54, "NVIDIA/nccl-tests#175"),
    Reached(_A100, 8, 1, "all_reduce", GIB, 200.0, "NVIDIA/nccl-tests#149, rounded", "2.18.1"),
    Reached(_A100, 8, 1, "all_to_all", 8 * GIB, 226.16, "microsoft/superbenchmark, tests/data"),
    Reached(_A100, 8, 1, "broadcast", 8 * GIB, 234.7, "microsoft/superbenchmark, tests/data"),
    Reached(_A100, 16, 2, "all_reduce", None, 86.0, "NVIDIA/nccl-tests#175, 4 x 200 Gbit/s a host"),
    Reached(_A100, 16, 2, "all_reduce", None, 75.0, "NVIDIA/nccl#495, 8 x 100 Gbit/s RoCE a host", "2.7"),
    Reached(_A100, 24, 3, "all_reduce", 128 * MIB, 96.0, "NVIDIA/nccl-tests#119, 4 HDR cards a host"),
    Reached(_A100, 32, 8, "all_reduce", GIB, 36.6, "argonne-lcf/alcf-nccl-tests, Slingshot", "2.18"),
    Reached("H100 PCIe", 2, 1, "all_reduce", 4 * GIB, 116.34, "NVIDIA/nccl#1161, NVLink bridge"),
    Reached(_H100, 8, 1, "all_reduce", 8 * GIB, 480.16, "NVIDIA/dgxc-benchmarking, nccl/README", nvls=True),
    Reached(_H100, 8, 1, "all_reduce", 8 * GIB, 478.87, f"{_AZURE}/ND_H100_v5", "2.18.5", nvls=True),
    Reached(_H100, 8, 1, "all_reduce", None, 476.0, "NVIDIA/nccl-tests#290", nvls=True),
    Reached(_H100, 8, 1, "all_gather", None, 370.0, "NVIDIA/nccl-tests#212, a maintainer, rounded"),
    Reached(
        _H100, 16, 2, "all_reduce", 2 * GIB, 437.89, "aws-samples/awsome-distributed-training, EFA", nvls=True
    ),
    Reached(_H100, 2, 2, "all_reduce", 16 * GIB, 50.0, "NVIDIA/nccl-tests#232, rounded, one card a GPU"),
    Reached("H800 SXM", 8, 1, "all_reduce", None, 215.0, "NVIDIA/nccl#1374", nvls=True),
    Reached(_H200, 8, 1, "all_reduce", 8 * GIB, 479.98, f"{_AZURE}/ND_H200_v5", "2.20.5", nvls=True),
    Reached(
        _H200,
        8,
        1,
        "all_reduce",
        16 * GIB,
        480.7,
        "stas00/ml-engineering, network/benchmarks",
        "2.30.7",
        nvls=True,
    ),
    Reached(_H200, 8, 1, "all_reduce", 4 * GIB, 475.0, "NVIDIA/nccl-tests#272", "2.20.3", nvls=True),
    Reached(_GH200, 8, 2, "all_reduce", 4 * GIB, 152.22, f"{_ALPS}, Slingshot", "2.23.4"),
    Reached(_GH200, 128, 32, "all_reduce", 128 * MIB, 49.14, f"{_ALPS}, with a cliff above", "2.23.4"),
    Reached(_GH200, 512, 128, "all_reduce", 4 * GIB, 89.24, f"{_ALPS}, with a hole at 2 GiB", "2.23.4"),
    Reached(
        "B200", 8, 1, "all_reduce", 16 * GIB, 838.97, "stas00/ml-engineering, network/benchmarks", nvls=True
    ),
    Reached("B200", 8, 1, "all_reduce", None, 830.0, "NVIDIA/nccl#1807, rounded", "2.27.1", nvls=True),
    Reached("B200", 32, 4, "all_reduce", 16 * GIB, 376.71, "stas00/ml-engineering, network/benchmarks"),
    Reached("GB200", 4, 1, "all_reduce", 8 * GIB, 679.61, f"{_AZURE}/ND_GB200_v6, ring", "2.25.1"),
    Reached(
        "GB200", 72, 18, "all_reduce", 8 * GIB, 846.82, "coreweave/nccl-tests PR#43, one NVL72", nvls=True
    ),
    Reached("RTX 4090", 2, 1, "all_reduce", GIB, 2.24, "kalavai-net/kalavai-client, no peer access"),
    Reached("RTX 5090", 4, 1, "all_reduce", 8 * GIB, 35.0, "NVIDIA/nccl#1639, rounded"),
    Reached("RTX 5090", 8, 1, "all_reduce", 8 * GIB, 28.0, "NVIDIA/nccl#1639, rounded"),
    Reached("MI300X", 8, 1, "all_reduce", 8 * MIB, 161.14, "crickett-hpe/hpc-ai-envs PR#30"),
)
_MACHINES = (
    (r"V100-SXM|V100 SXM", "V100 SXM"),
    (r"2080 Ti", "RTX 2080 Ti"),
    (r"A100.*PCIE?\b|A100.*PCIe", "A100 PCIe"),
    (r"A100", _A100),
    (r"H100 (PCIe|NVL)", "H100 PCIe"),
    (r"GH200", _GH200),
    (r"H100", _H100),
    (r"H800", "H800 SXM"),
    (r"H200 NVL", "H200 NVL"),
    (r"H200", _H200),
    (r"GB200", "GB200"),
    (r"\bB200", "B200"),
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
) -> str | None:
    """One's own figure beside what others reach, in words; None where the table has no such machine.

    `causes`: what NCCL's log says of slow ways, with the remedy.
    """
    reports = like(device, gpus, hosts, collective, size_bytes)
    if not reports:
        return None
    figures = sorted(r.busbw_gb_s for r in reports)
    middle = median(figures)
    span = f" ({figures[0]:.4g} to {figures[-1]:.4g}, {len(figures)} reports)" if len(figures) > 1 else ""
    where = f"{gpus} x {reports[0].machine}" + ("" if hosts == 1 else f" on {hosts} hosts")
    sources = "; ".join(dict.fromkeys(r.source for r in reports))
    nvls = " with NVLS" if all(r.nvls for r in reports) else ""
    share = busbw_gb_s / middle
    why = f"; less than half, and NCCL's log says why: {'; '.join(causes)}" if share < HALF and causes else ""
    return (
        f"others reach {middle:.4g}{span} GB/s in {collective} on {where}{nvls}; yours: {busbw_gb_s:.4g} at "
        f"{format_bytes(size_bytes)}, {share:.0%} of it ({sources}){why}"
    )


def beside_runs(fabric: Fabric, device: str, spec: Spec) -> tuple[str, ...]:
    """`beside` for the best size of each collective that a run has swept at each world size."""
    texts = []
    for level in fabric.levels:
        best: dict[str, CurvePoint] = {}
        for point in sorted(level.curve, key=lambda point: point.busbw_gbit_s.value):
            best[point.collective] = point
        hosts = len(spec.topology.shares(level.world_size))
        for name, p in best.items():
            busbw_gb_s = p.busbw_gbit_s.value / 8
            causes = nccl_log.warnings(fabric, spec)
            texts.append(beside(device, level.world_size, hosts, name, p.bytes, busbw_gb_s, causes))
    return tuple(text for text in texts if text is not None)
