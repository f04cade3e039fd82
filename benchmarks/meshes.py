"""Measure every mesh of four ranks on two levels of link in one run: which split is fastest, and does each close.

    python benchmarks/meshes.py [--budget SECONDS] [--keep FOLDER]

Two emulated hosts of two ranks each: the loopback within a host, a shaped link of 500 Mbit/s between them. The model is
synthetic: its compute is sleep that divides with its layers, so two cores carry four ranks. `vary.parallel` measures
all six meshes in one launch, in turns. The table ranks them by samples a second.

The truth of a collective between hosts is what its ranks put on a host's link (of all groups that cross it at once),
over the TCP payload that the link can carry. Gloo's all-reduce and all-gather go round a ring, of which one edge leaves
each host; the reduce-scatter here sends every rank its part, so a host sends what is for ranks of the other one.

Then every mesh is simulated (`scaling predict RUN parallel=...`) with the kernel times and links that the run measured.

Bars (exit 1 when missed): every mesh has an interval; the transfer between hosts of all meshes together within 3 % of
the truth; every mesh closes, and leaves no more unexplained, within the greater of 3 % and the A/A floor; the predicted
steps of the six meshes are off by 5 % in the median, and rank them as measured wherever the measured
intervals separate two of them. With --keep a run in FOLDER is analysed and not measured anew. Exit 77 without
namespaces.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
from ending import exit_with

from scaling.settings.parallel import Mesh
from scaling_simulator.simulate.simulations import from_run

NAMES = ("ddp", "fsdp", "hsdp", "tp", "fsdp_tp", "hsdp_tp")
RANKS, PER_HOST = 4, 2
RATE_BYTES_S = 500e6 / 8 * 1448 / 1514
POOLED, CLOSES, MEDIAN = 0.03, 0.03, 0.05
OVERRIDES = (
    "model=synthetic",
    "model.param_mb=4",
    "model.layers=4",
    "model.compute_ms=80",
    "model.activations=4096",
    "topology=emulated_pcie",
    "topology.hosts=2",
    f"topology.ranks_per_host={PER_HOST}",
    "topology.link.rate=500mbit",
    "world_sizes=[4]",
    "measure=quick",
    "tracking=disabled",
    f"vary.parallel=[{','.join(NAMES)}]",
)


def over_the_link(mesh: Mesh, row: Mapping[str, Any]) -> float:
    """Bytes that a host's link carries each way for a collective of every group at once; 0 within a host."""
    total = 0.0
    for group in mesh.axes()[row["communicator"]]:
        here = sum(rank < PER_HOST for rank in group)
        away, n = len(group) - here, len(group)
        if not here or not away:
            continue
        if row["kind"] == "reduce_scatter":
            total += row["bytes"] * here * away / n
        else:
            total += row["bytes"] * (2 if row["kind"] == "all_reduce" else 1) * (n - 1) / n
    return total


def transfers(strategy: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """(measured, true) ms of each kind of collective between hosts."""
    point = strategy["points"][-1]
    degrees = {name: point["parallel"][name] for name in ("replicate", "shard", "tensor")}
    mesh = Mesh(**degrees)
    rows = point["comm"]["collectives"] if point["comm"] else []
    for row in rows:
        true_ms = over_the_link(mesh, row) / RATE_BYTES_S * 1e3
        if true_ms and row["transfer_ms"]:
            yield row["transfer_ms"]["value"], true_ms


def judged(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """What a mesh does, beside its truth."""
    point = strategy["points"][-1]
    floor = abs((point["overhead"]["aa_floor"] or {"value": 1.0})["value"] - 1)
    both = list(transfers(strategy))
    measured, true = (sum(pair[k] for pair in both) for k in (0, 1))
    loss = point["loss"] or {}
    return {
        "name": strategy["parallel"]["strategy"],
        "samples_per_s": point["samples_per_s"],
        "step_ms": point["step_ms"],
        "samples": point["samples_per_s"]["value"] * point["step_ms"]["value"] if point["step_ms"] else 0.0,
        "measured": measured,
        "true": true,
        "closure": point["closure"],
        "unexplained": loss.get("unexplained"),
        "allowed": max(CLOSES, floor),
    }


def closes(row: Mapping[str, Any]) -> bool:
    """Whether parts and whole agree, as far as equal blocks do."""
    closure, rest = row["closure"], row["unexplained"]
    if closure is None or rest is None:
        return False
    return bool(abs(closure["value"] - 1) <= row["allowed"] and abs(rest["value"]) <= row["allowed"])


def predictions(folder: Path) -> dict[str, float]:
    """The step of each mesh in ms, simulated from the run. SystemExit where one cannot be predicted."""
    steps = {}
    for outcome in from_run(str(folder), [f"parallel={','.join(NAMES)}", f"world_sizes=[{RANKS}]"]):
        (point,) = outcome.results.points
        if point.step_ms is None:
            raise SystemExit(f"{point.strategy}: {point.why}")
        steps[point.strategy] = point.step_ms.value
    return steps


def reversed_pairs(rows: Sequence[Mapping[str, Any]], steps: Mapping[str, float]) -> list[tuple[str, str]]:
    """Pairs that the measured intervals of samples/s separate and the prediction has the other way round."""
    pairs = []
    for row, other in itertools.permutations(rows, 2):
        faster, slower = row["samples_per_s"], other["samples_per_s"]
        if not has_interval(faster) or not has_interval(slower) or faster["low"] <= slower["high"]:
            continue
        rates = [row["samples"] / steps[row["name"]] for row in (row, other)]
        if rates[0] <= rates[1]:
            pairs.append((row["name"], other["name"]))
    return pairs


def main() -> int:
    """Measure or analyse, print the table, and judge."""
    asked = harness.parser(__doc__)
    asked.add_argument("--budget", type=float, default=300)
    asked.add_argument("--keep", type=Path)
    given = asked.parse_args()
    if not harness.has_namespaces():
        return harness.skipped("meshes", "no user namespaces")
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.keep or Path(scratch)) / "meshes"
        exists = (folder / "analysis.json").exists()
        budget = f"measure.budget_s={given.budget:g}"
        analysis = harness.analyze(folder) if exists else harness.measure(folder, *OVERRIDES, budget)
        steps = predictions(folder)
    rows = sorted(
        (judged(strategy) for strategy in analysis["strategies"]),
        key=lambda row: -(row["samples_per_s"] or {"value": 0})["value"],
    )
    print(
        f"{'mesh':<8}  {'samples/s':>22}  {'step':>8}  {'between hosts':>14}  {'truth':>8}  {'closure':>7}  "
        f"{'unexplained':>11}  {'predicted':>9}  {'error':>6}"
    )
    for row in rows:
        rate, step = row["samples_per_s"], row["step_ms"]
        apart = (
            f"{rate['value']:8.1f} [{rate['low']:.1f}, {rate['high']:.1f}]"
            if has_interval(rate)
            else "no interval"
        )
        print(
            f"{row['name']:<8}  {apart:>22}  {step['value'] if step else 0:>8.1f}  {row['measured']:>14.1f}  "
            f"{row['true']:>8.1f}  {_value(row['closure'], '.3f'):>7}  "
            f"{_value(row['unexplained'], '+.3f'):>11}  {steps[row['name']]:>9.1f}  {error(row, steps):>+6.1%}"
        )
    measured, true = (sum(row[name] for row in rows) for name in ("measured", "true"))
    bias = measured / true - 1 if true else float("nan")
    contended = analysis["quality"]["contended_blocks"]
    print(f"transfer between hosts, all meshes together: {bias:+.1%}; contended blocks: {contended}")
    errors = [abs(error(row, steps)) for row in rows]
    median, swapped = statistics.median(errors), reversed_pairs(rows, steps)
    print(
        f"simulated: median error of {len(errors)} steps {median:.1%}, worst {max(errors):.1%}; "
        f"bar of the median {MEDIAN:.0%}; pairs in another order: {swapped or 'none'}"
    )
    ok = all(has_interval(row["samples_per_s"]) and closes(row) for row in rows) and abs(bias) <= POOLED
    return harness.result(
        "meshes",
        ok=ok and len(rows) == len(NAMES) and median <= MEDIAN and not swapped,
        order=[row["name"] for row in rows],
        bias=round(bias, 4),
        closed=sum(map(closes, rows)),
        contended=contended,
        predicted_median=round(median, 4),
        swapped=len(swapped),
    )


def error(row: Mapping[str, Any], steps: Mapping[str, float]) -> float:
    """Predicted over measured step, minus 1."""
    return steps[row["name"]] / row["step_ms"]["value"] - 1 if row["step_ms"] else float("nan")


def has_interval(measured: Mapping[str, Any] | None) -> bool:
    """Whether a number has one."""
    return measured is not None and measured["low"] is not None


def _value(measured: Mapping[str, Any] | None, form: str) -> str:
    return "-" if measured is None else format(measured["value"], form)


if __name__ == "__main__":
    exit_with(main)
