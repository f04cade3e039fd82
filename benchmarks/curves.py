"""How well a fabric curve stands for the sizes that it has no point at, and whether its cliffs are named, on real logs.

    python benchmarks/curves.py

Reads logs of nccl-tests (SCALING_SHARED_DATA, by default ../shared/data beside the checkout). A size's time is the mean
of both modes, its range the two of them. Each point but the first and last is left out in turn and interpolated from
the others. The bar is 5 % for the median log's median error. A straight line (alpha + bytes x beta, least squares in
relative error over all sizes) stands beside it. The cliffs that have to be found were labelled by eye, from the tables,
before the rule was written; no other may be named.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import numpy as np
from ending import exit_with
from harness import parser, result, skipped

from scaling.analysis.network.cliffs import Timed, cliffs
from scaling.analysis.network.curve import Points
from scaling.traces.machines.nccl_tests import parse_log
from scaling.units import format_bytes

DATA = (
    Path(os.environ.get("SCALING_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data")) / "nccl_tests"
)
BAR = 0.05

KIB, MIB, GIB = 2**10, 2**20, 2**30
LABELS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "a100_8gpu_broadcast_superbench.log": (),
    "a100_polaris_8node_32_steps.dat": (("falls", 128 * KIB, 256 * KIB), ("falls", MIB, 2 * MIB)),
    "a100_sxm4_8gpu_allreduce_superbench.log": (),
    "a100_sxm4_8gpu_alltoall_superbench.log": (),
    # From 64 KiB on it jumps to and fro between two times, some three times apart, also from one KiB to the next.
    "a100pcie_2gpu_pcie_allreduce_1kib_steps.txt": (("unsteady", 64 * KIB, MIB),),
    "gh200_alps_2node_8_cross_nic.txt": (("falls", 512 * KIB, MIB),),
    "gh200_alps_32node_128_cliff.txt": (
        ("falls", 256 * KIB, 512 * KIB),
        ("jumps", 128 * MIB, 256 * MIB),
    ),
    "gh200_alps_128node_512_hole_at_2gib.txt": (
        ("falls", 256 * KIB, MIB),
        ("jumps", GIB, 2 * GIB),
        ("falls", 2 * GIB, 4 * GIB),
    ),
    "h100_8gpu_dgxc_0.log": (),
    "h100_p5_2node_efa_aws_0.log": (),
    "rtx4090_2gpu_pcie_kalavai_0.log": (),
}
"""Per log: kind, from, to, by eye. Sizes of the log with steps of 1 KiB are known to a tenth."""
NEAR = 0.1


def line_error(points: list[Timed]) -> float:
    """Median relative error of the straight line."""
    m, t = (np.array(each, dtype=float) for each in zip(*((p.bytes, p.time) for p in points), strict=True))
    weighted = np.stack([1 / t, m / t], axis=1)
    alpha, beta = np.linalg.lstsq(weighted, np.ones_like(t), rcond=None)[0]
    return float(np.median(np.abs(alpha + beta * m - t) / t))


def left_out_error(sizes: tuple[int, ...], times: np.ndarray) -> float:
    """Median of |T interpolated from the other points - T| / T over each point but the first and the last."""
    errors = []
    for k in range(1, len(sizes) - 1):
        others = Points(sizes=sizes[:k] + sizes[k + 1 :], times=np.delete(times, k)[None])
        errors.append(abs(float(others.at(sizes[k])[0]) / times[k] - 1))
    return float(np.median(errors))


def agree(cliff: tuple[str, int, int], label: tuple[str, int, int]) -> bool:
    """Whether a cliff is the labelled one."""
    near = all(abs(a / b - 1) <= NEAR for a, b in zip(cliff[1:], label[1:], strict=True))
    return cliff[0] == label[0] and near


def main() -> int:
    """Run it."""
    parser(__doc__).parse_args()
    if not DATA.is_dir():
        return skipped("curves", f"{DATA} is not there; SCALING_SHARED_DATA names the folder")
    print(f"{'log':<44} sizes  left out  line    cliffs")
    errors, lines, missed, invented, named = [], [], 0, 0, 0
    for name, labels in LABELS.items():
        (section,) = parse_log((DATA / name).read_text(encoding="utf-8", errors="replace"), name)
        points = section.timed()
        times = np.array([p.time for p in points], dtype=float)
        errors.append(left_out_error(tuple(p.bytes for p in points), times))
        lines.append(line_error(points))
        seen = cliffs(points, section.collective or "")
        keys = [(c.kind, c.from_bytes, c.to_bytes) for c in seen]
        missed += sum(not any(agree(key, label) for key in keys) for label in labels)
        invented += sum(not any(agree(key, label) for label in labels) for key in keys)
        named += len(labels)
        listed = "; ".join(
            f"{c.kind} {format_bytes(c.from_bytes)} to {format_bytes(c.to_bytes)} x {c.factor:.2f}"
            for c in seen
        )
        print(f"{name:<44} {len(points):>5}  {errors[-1]:>7.1%}  {lines[-1]:>5.1%}  {listed or '-'}")
    middle = median(errors)
    print(
        f"median of the logs: {middle:.1%} with a point left out (bar {BAR:.0%}), {median(lines):.1%} for a line"
    )
    print(f"cliffs by eye: {named}, missed {missed}, invented {invented}")
    return result(
        "curves",
        ok=middle <= BAR and not missed and not invented,
        left_out_error=round(middle, 4),
        line_error=round(median(lines), 4),
        cliffs=named,
        missed=missed,
        invented=invented,
    )


if __name__ == "__main__":
    exit_with(main)
