"""How well a simulation forecasts published trainings on H100, calibrated on the two smallest sizes of each series.

    python benchmarks/published_series.py [--series S04,S06]

Reads llm-foundry's tables (scaling/published_sharded.csv in SCALING_SHARED_DATA, by default ../shared/data beside the
checkout) and simulates each series' model, batch and FSDP setting on hgx_h100. Two numbers are fitted to each series
and nothing else: a factor on all kernels, to the smallest size's throughput, and the lasting spread of ranks (n ranks
wait for the latest of n normal draws), to the next size's. The largest size judges. Beside it stand `always 1.0` (the
smallest size's throughput a GPU), a straight line through the two in log2 of the ranks, and the simulation with the
factor alone. Series of two sizes leave nothing to judge and are not simulated. MPT is built as GPT-2 is, with MPT's
width, layers and heads; memory is not limited, since published runs have a fused loss. There is no bar: the table is
what is asked for.
"""

from __future__ import annotations

import csv
import math
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
from ending import exit_with
from harness import parser, result, skipped

from scaling.analysis.simulate.ask import batch_of, latest, mesh_of, simulation
from scaling.analysis.simulate.inputs import assumed
from scaling.config.simulation import to_simulation
from scaling.launchers.simulate import simulate
from scaling.spec.simulation import Simulation

DATA = Path(os.environ.get("SCALING_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
TABLE = DATA / "scaling" / "published_sharded.csv"
SHAPES = {
    "MPT 760m": (1536, 24, 12),
    "MPT 1b": (2048, 24, 16),
    "MPT 3b": (2560, 32, 20),
    "MPT 7b": (4096, 32, 32),
    "MPT 13b": (5120, 40, 40),
    "MPT 30b": (7168, 48, 56),
    "MPT 70b": (8192, 80, 64),
}
"""Width, layers, heads (llm-foundry, scripts/train/benchmarking)."""
STRETCHES = (0.6, 0.8, 1.0, 1.25, 1.6, 2.2)
"""Factors on kernels that are simulated; between them a step is interpolated."""
UNLIMITED_BYTES = 10**12
SIZES_MIN = 3


@dataclass(frozen=True, kw_only=True)
class Size:
    """One published row, and its step in seconds by factor on kernels."""

    gpus: int
    rate: float
    """Tokens/s and GPU, published."""
    tokens: float
    """Of a rank and step."""
    steps_s: tuple[float, ...] = ()

    def simulated(self, stretch: float) -> float:
        """Tokens/s and GPU."""
        return self.tokens / float(np.interp(stretch, STRETCHES, self.steps_s))


def published(wanted: set[str]) -> dict[str, list[dict[str, str]]]:
    """Rows of llm-foundry's series with enough sizes, the smallest first."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    with TABLE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["series"] and row["model"] in SHAPES and (not wanted or row["series"] in wanted):
                found[row["series"]].append(row)
    return {
        name: sorted(rows, key=lambda row: int(row["gpus"]))
        for name, rows in sorted(found.items())
        if len(rows) >= SIZES_MIN
    }


def ask(row: dict[str, str]) -> Simulation:
    """The simulation of a row, once for each of STRETCHES."""
    width, layers, heads = SHAPES[row["model"]]
    samples = int(row["micro_batch"]) * int(row["grad_accum"])
    words = [
        "topology=simulated_hgx_h100",
        f"world_sizes=[{row['gpus']}]",
        "parallel=fsdp",
        "model=gpt2",
        *(f"model.{key}={value}" for key, value in (("width", width), ("layers", layers), ("heads", heads))),
        f"model.context={row['seq_len']}",
        f"model.sequence={row['seq_len']}",
        "precision=bf16",
        f"batch_per_rank={samples}",
        f"accumulation_steps={row['grad_accum']}",
        f"checkpointing={row['act_ckpt'].lower()}",
        f"fsdp.reshard_after_forward={str(row['strategy'] == 'FSDP FULL_SHARD').lower()}",
        "fused_optimizer=true",
    ]
    asked = to_simulation(words)
    spec = replace(asked.spec, parallel=asked.strategies[0])
    mesh = mesh_of(spec.parallel, int(row["gpus"]))
    inputs = replace(assumed(spec.topology, spec.precision), capacity_bytes=UNLIMITED_BYTES)
    made = simulation(spec, mesh, inputs, batch_of(spec, mesh), whole=False)
    (expected,) = made.physics
    return replace(made, physics=tuple(replace(expected, name=f"x {s:g}", stretch=s) for s in STRETCHES))


def answered(row: dict[str, str], asked: Simulation) -> Size:
    """A row with its simulated steps. SystemExit where it gives none."""
    found = simulate(asked)
    if found.failed is not None:
        raise SystemExit(f"{row['series']} at {row['gpus']}: {found.failed}")
    return Size(
        gpus=int(row["gpus"]),
        rate=float(row["tokens_per_s_per_gpu"]),
        tokens=float(row["seq_len"]) * int(row["micro_batch"]) * int(row["grad_accum"]),
        steps_s=tuple(step.step_ns / 1e9 for step in found.steps),
    )


def stretch_for(size: Size) -> float:
    """The factor on kernels at which the simulation has the published throughput."""
    return float(np.interp(size.tokens / size.rate, size.steps_s, STRETCHES))


def calibrated(first: Size, second: Size) -> tuple[float, float]:
    """(factor, spread): kernels of n ranks take factor x (1 + spread x latest(n)); both sizes are met, spread >= 0."""
    a, b = stretch_for(first), stretch_for(second)
    la, lb = latest(first.gpus), latest(second.gpus)
    spread = max(0.0, (b - a) / (a * lb - b * la)) if a * lb > b * la else 0.0
    return a / (1 + spread * la), spread


def main() -> int:
    """Run it."""
    arguments = parser(__doc__)
    arguments.add_argument("--series", default="", help="with commas; by default all")
    wanted = {word for word in arguments.parse_args().series.split(",") if word}
    if not TABLE.is_file():
        return skipped("published_series", f"{TABLE} is not there; SCALING_SHARED_DATA names the folder")
    print(
        "efficiency of the largest size over the smallest; errors in percentage points (forecast - published)"
    )
    print(
        "series model      sizes            factor  spread  published  simulated  factor alone  line    1.0"
    )
    errors: dict[str, list[float]] = defaultdict(list)
    with ThreadPoolExecutor(2) as pool:
        for name, rows in published(wanted).items():
            sizes = list(pool.map(answered, rows, [ask(row) for row in rows]))  # Hydra composes one at a time
            first, second, last = sizes[0], sizes[1], sizes[-1]
            factor, spread = calibrated(first, second)
            truth = last.rate / first.rate
            slope = (second.rate - first.rate) / math.log2(second.gpus / first.gpus)
            forecast = {
                "simulated": last.simulated(factor * (1 + spread * latest(last.gpus))) / first.rate,
                "factor": last.simulated(stretch_for(first)) / first.rate,
                "line": (first.rate + slope * math.log2(last.gpus / first.gpus)) / first.rate,
                "one": 1.0,
            }
            for key, value in forecast.items():
                errors[key].append(value - truth)
            off = {key: value - truth for key, value in forecast.items()}
            print(
                f"{name:<6} {rows[0]['model']:<9}  {','.join(str(s.gpus) for s in sizes):<15}  {factor:>6.3f}  "
                f"{spread:>6.2%}  {truth:>9.4f}  {off['simulated']:>+9.2%}  {off['factor']:>+12.2%}  "
                f"{off['line']:>+6.2%}  {off['one']:>+6.2%}",
                flush=True,
            )
    if not errors:
        return skipped("published_series", "no series of at least three sizes was asked for")
    sizes_of = {key: [abs(e) for e in of] for key, of in errors.items()}
    print(
        "mean and worst of the absolute errors: "
        + "; ".join(f"{key} {mean(of):.2%} and {max(of):.2%}" for key, of in sizes_of.items())
    )
    return result(
        "published_series",
        ok=True,
        series=len(errors["one"]),
        **{f"{key}_mean": round(mean(of), 4) for key, of in sizes_of.items()},
        **{f"{key}_worst": round(max(of), 4) for key, of in sizes_of.items()},
    )


if __name__ == "__main__":
    exit_with(main)
