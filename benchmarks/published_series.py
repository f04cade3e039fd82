"""How well a simulation forecasts published trainings on H100, calibrated on the two smallest sizes of each series.

    python benchmarks/published_series.py [--series S04,S06]

Reads tables of llm-foundry and torchtitan (scaling/published_sharded.csv in SCALING_SHARED_DATA, by default
../shared/data beside the checkout) and simulates each series' model, batch and FSDP setting on hgx_h100. Two numbers
are fitted to each series and nothing else: a factor on all kernels, to the smallest size's throughput, and the
lasting spread of ranks (n ranks wait for the latest of n normal draws), to the next size's. The largest size judges.
Beside it stand `always 1.0` (the smallest size's throughput a GPU), a straight line through the two in log2 of the
ranks, and the simulation with the factor alone, which is all that a series of two sizes can be judged by. MPT is
built as GPT-2 is, with MPT's width, layers and heads; torchtitan's selective checkpointing as none. Compiled and FP8
rows are no programs that are simulated. Memory is not limited, since published runs have a fused loss; the last
column is a rank's simulated peak at the smallest size, which the published devices of 80 GB held ("-": with selective
checkpointing). There is no bar: the table is what is asked for.
"""

from __future__ import annotations

import csv
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
from ending import exit_with
from harness import parser, result, skipped

from scaling.analysis.statistics.rounds import latest
from scaling_simulator.simulate.ask import assumed, batch_of, mesh_of, simulate, simulation
from scaling_simulator.simulate.request import to_simulation
from scaling_simulator.simulation import Simulation

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
LLAMA_8B = {
    "width": 4096,
    "layers": 32,
    "heads": 32,
    "key_value_heads": 8,
    "head": 128,
    "feedforward": 14336,
    "vocabulary": 128256,
    "tied": "false",
}
LLAMA_70B = {**LLAMA_8B, "width": 8192, "layers": 80, "heads": 64, "feedforward": 28672}
LLAMAS = {"Llama 3.1 8B": LLAMA_8B, "Llama 3.1 70B": LLAMA_70B}
"""As their config.json have them."""
STRETCHES = (0.6, 0.8, 1.0, 1.25, 1.6, 2.2)
"""Factors on kernels that are simulated; between them a step is interpolated."""
UNLIMITED_BYTES = 10**12
FITTED = 2
"""Sizes that are fitted; a series with more has one that judges."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """One published row, and its step in seconds by factor on kernels."""

    gpus: int
    rate: float
    """Tokens/s and GPU, published."""
    tokens: float
    """Of a rank and step."""
    steps_s: tuple[float, ...] = ()
    peak: str = "-"
    """Simulated peak of a rank, GB."""

    def simulated(self, stretch: float) -> float:
        """Tokens/s and GPU."""
        return self.tokens / _between(stretch, STRETCHES, self.steps_s)


def _between(x: float, xs: tuple[float, ...], ys: tuple[float, ...]) -> float:
    """Interpolate in rising points. SystemExit outside of them."""
    if not xs[0] <= x <= xs[-1]:
        raise SystemExit(f"{x:.4g} lies outside of what was simulated, {xs[0]:.4g} to {xs[-1]:.4g}")
    return float(np.interp(x, xs, ys))


def published(wanted: set[str]) -> dict[str, list[dict[str, str]]]:
    """Rows of the series that are simulated, the smallest first."""
    by_series: dict[str, list[dict[str, str]]] = defaultdict(list)
    with TABLE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            modelled = row["model"] in SHAPES or row["model"] == "Llama 3.1 8B"
            plain = row["compile"] != "yes" and row["precision"] in {"amp_bf16", "bf16"}
            if row["series"] and modelled and plain and (not wanted or row["series"] in wanted):
                by_series[row["series"]].append(row)
    return {
        name: sorted(rows, key=lambda row: int(row["gpus"]))
        for name, rows in sorted(by_series.items())
        if len(rows) >= FITTED
    }


def steps_of(row: dict[str, str]) -> int:
    """Micro-steps of a step."""
    return int(row["grad_accum"] or 1)


def model_of(row: dict[str, str]) -> list[str]:
    """The overrides of a row's model."""
    if row["model"] in LLAMAS:
        return ["model=llama", *(f"model.{key}={value}" for key, value in LLAMAS[row["model"]].items())]
    shape = zip(("width", "layers", "heads"), SHAPES[row["model"]], strict=True)
    return ["model=gpt2", *(f"model.{key}={value}" for key, value in shape)]


def ask(row: dict[str, str], *mesh_words: str, stretches: Sequence[float] = STRETCHES) -> Simulation:
    """The simulation of a row, once for each of the factors on kernels. `mesh_words`: overrides, beside fsdp."""
    words = [
        "topology=simulated_hgx_h100",
        f"world_sizes=[{row['gpus']}]",
        "parallel=fsdp",
        *model_of(row),
        f"model.context={row['seq_len']}",
        f"model.sequence={row['seq_len']}",
        "precision=bf16",
        f"batch_per_rank={int(row['micro_batch']) * steps_of(row)}",
        f"accumulation_steps={steps_of(row)}",
        f"checkpointing={str(row['act_ckpt'] == 'True').lower()}",
        f"fsdp.reshard_after_forward={str(row['strategy'] != 'FSDP SHARD_GRAD_OP').lower()}",
        "fused_optimizer=true",
        *mesh_words,
    ]
    asked = to_simulation(words)
    spec = replace(asked.spec, parallel=asked.strategies[0])
    mesh = mesh_of(spec.parallel, int(row["gpus"]))
    inputs = replace(assumed(spec.topology, spec.precision), capacity_bytes=UNLIMITED_BYTES)
    asked_for = simulation(spec, mesh, inputs, batch_of(spec, mesh), whole=False)
    (expected,) = asked_for.physics
    return replace(asked_for, physics=tuple(replace(expected, name=f"x {s:g}", stretch=s) for s in stretches))


def answered(row: dict[str, str], asked: Simulation) -> Size:
    """A row with its simulated steps. SystemExit where it gives none."""
    simulated = simulate(asked)
    if simulated.failed is not None:
        raise SystemExit(f"{row['series']} at {row['gpus']}: {simulated.failed}")
    plain = row["act_ckpt"] in {"True", "False"}
    return Size(
        gpus=int(row["gpus"]),
        rate=float(row["tokens_per_s_per_gpu"]),
        tokens=float(row["seq_len"]) * int(row["micro_batch"]) * steps_of(row) / asked.spec.parallel.tensor,
        steps_s=tuple(step.step_ns / 1e9 for step in simulated.steps),
        peak=f"{simulated.memory.peak_bytes / 1e9:>7.1f}" if simulated.memory and plain else f"{'-':>7}",
    )


def stretch_for(size: Size) -> float:
    """The factor on kernels at which the simulation has the published throughput."""
    return _between(size.tokens / size.rate, size.steps_s, STRETCHES)


def calibrated(first: Size, second: Size) -> tuple[float, float]:
    """(factor, spread): kernels of n ranks take factor x (1 + spread x latest(n)); both sizes are met, spread >= 0."""
    a, b = stretch_for(first), stretch_for(second)
    la, lb = latest(first.gpus), latest(second.gpus)
    spread = max(0.0, (b - a) / (a * lb - b * la)) if a * lb > b * la else 0.0
    return a / (1 + spread * la), spread


def forecasts(sizes: list[Size]) -> dict[str, float]:
    """The largest size's throughput over the smallest's, by each way to tell it from the sizes before."""
    first, last = sizes[0], sizes[-1]
    ratios = {"factor": last.simulated(stretch_for(first)) / first.rate, "one": 1.0}
    if len(sizes) > FITTED:
        second = sizes[1]
        factor, spread = calibrated(first, second)
        slope = (second.rate - first.rate) / math.log2(second.gpus / first.gpus)
        ratios["simulated"] = last.simulated(factor * (1 + spread * latest(last.gpus))) / first.rate
        ratios["line"] = (first.rate + slope * math.log2(last.gpus / first.gpus)) / first.rate
    return ratios


def line_of(name: str, model: str, sizes: list[Size], off: dict[str, float]) -> str:
    """A row of the table; "-": nothing is left to judge by."""
    factor, spread = calibrated(sizes[0], sizes[1]) if len(sizes) > FITTED else (stretch_for(sizes[0]), None)
    gpus = ",".join(str(size.gpus) for size in sizes)
    errors = "  ".join(
        f"{off[key]:>+9.2%}" if key in off else f"{'-':>9}" for key in ("simulated", "factor", "line", "one")
    )
    share = f"{'-':>6}" if spread is None else f"{spread:>6.2%}"
    truth = sizes[-1].rate / sizes[0].rate
    fitted = f"{factor:>6.3f}  {share}"
    return f"{name:<6} {model:<12}  {gpus:<15}  {fitted}  {truth:>9.4f}  {errors}  {sizes[0].peak}"


def main() -> int:
    """Run it."""
    arguments = parser(__doc__)
    arguments.add_argument("--series", default="", help="with commas; by default all")
    wanted = {word for word in arguments.parse_args().series.split(",") if word}
    if not TABLE.is_file():
        return skipped("published_series", f"{TABLE} is not there; SCALING_SHARED_DATA names the folder")
    print(
        "efficiency of the largest size over the smallest; errors in percentage points (forecast - published)\n"
        f"series {'model':<12}  {'sizes':<15}  factor  spread  published  simulated  {'factor':>9}  {'line':>9}  "
        f"{'1.0':>9}  peak GB"
    )
    errors: dict[str, list[float]] = defaultdict(list)
    with ThreadPoolExecutor(2) as pool:
        for name, rows in published(wanted).items():
            sizes = list(pool.map(answered, rows, [ask(row) for row in rows]))  # Hydra composes one at a time
            truth = sizes[-1].rate / sizes[0].rate
            off = {key: value - truth for key, value in forecasts(sizes).items()}
            judged = "" if len(sizes) > FITTED else "two_"
            for key, value in off.items():
                errors[judged + key].append(value)
            print(line_of(name, rows[0]["model"], sizes, off), flush=True)
    if not errors:
        return skipped("published_series", "no series that is simulated was asked for")
    sizes_of = {key: [abs(e) for e in offs] for key, offs in sorted(errors.items())}
    print(
        "mean and worst of the absolute errors (two_: series of two sizes): "
        + "; ".join(f"{key} {mean(offs):.2%} and {max(offs):.2%}" for key, offs in sizes_of.items())
    )
    return result(
        "published_series",
        ok=True,
        series=len(errors["one"]) + len(errors["two_one"]),
        **{f"{key}_mean": round(mean(offs), 4) for key, offs in sizes_of.items()},
        **{f"{key}_worst": round(max(offs), 4) for key, offs in sizes_of.items()},
    )


if __name__ == "__main__":
    exit_with(main)
