"""Simulate runs over emulated links from another run, and compare with what they measured.

    python benchmarks/simulation.py [--keep DIR] [--seconds N]

A source is measured at 1 and 2 ranks. From it alone, as `scaling predict RUN --simulate` does, other runs are
simulated: other rates, bucket sizes, a sharded strategy, 4 ranks, and some with a rank that is late in each step.
`--keep` leaves the runs in DIR and takes those that are there; with `--seconds` no run is begun after that time, so
that a benchmark in pieces goes on where it was cut.

Beside the simulation stand today's predictor (`scaling predict RUN`; "-": it cannot answer) and "always 1.0", for which
n ranks take the step of one. The step is judged, and the efficiency of the run against its own step alone, in which a
machine that is slower in one run than in the other cancels out.

Left out, whatever the error, and listed, as in prediction.py: a source or target with real compute and more ranks than
cores; whose size sweep reaches less than 90 % of what its link can carry, where the CPU limits the link; whose run
reports that other programs were running.

Bars (exit 1 when missed): the median error of the step <= 5 %, the worst <= 10 %; the mean error of the efficiency at
most half of that of "always 1.0". Exit 77 without namespaces, without a compiler, or with runs still to be measured.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import harness
from emulated import MODELS, left_out
from ending import exit_with

from scaling.cli.api import predict
from scaling.cli.loaded import Run
from scaling.cli.pipeline import read_analysis
from scaling.errors import ScalingError
from scaling.records.paths import RunFolder
from scaling.records.run import read_config
from scaling_simulator.simulate.ask import batch_of, mesh_of, simulate, simulation
from scaling_simulator.simulate.request import to_simulation
from scaling_simulator.simulate.simulations import Measured
from scaling_simulator.simulation import Simulated

BARS = {"median": 0.05, "worst": 0.10, "of_one": 0.5}
LATE = ("inject.rank=1", "inject.compute_ms=15")
BATCH = {"mlp": 512, "synthetic": 32}
BUDGET_S = {"source": 45, "target": 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run at 1 and 2 ranks, and what else is simulated from it: world size and settings that differ, by name."""

    name: str
    model: str
    hosts: int
    rate: str
    always: tuple[str, ...] = ()
    targets: tuple[tuple[str, int, tuple[str, ...]], ...] = ()

    def overrides(self, world_sizes: str, changed: tuple[str, ...], budget_s: int) -> list[str]:
        """Of a run with these settings."""
        return [
            "topology=emulated_pcie",
            f"topology.hosts={self.hosts}",
            f"world_sizes={world_sizes}",
            *MODELS[self.model],
            f"batch_per_rank={BATCH[self.model]}",
            *([] if _sets(changed, "topology.link.rate") else [f"topology.link.rate={self.rate}"]),
            *self.always,
            *changed,
            "measure=quick",
            f"measure.budget_s={budget_s}",
            "measure.rounds_max=8",
            "tracking=disabled",
        ]


RATE, CAP = "topology.link.rate", "ddp.bucket_cap_mb"
SOURCES = (
    Source(
        name="mlp",
        model="mlp",
        hosts=2,
        rate="1gbit",
        targets=(
            ("slower", 2, (f"{RATE}=500mbit",)),
            ("slow", 2, (f"{RATE}=250mbit",)),
            ("small buckets", 2, (f"{CAP}=2",)),
            ("slower, small buckets", 2, (f"{RATE}=500mbit", f"{CAP}=5")),
            ("sharded", 2, ("parallel=fsdp",)),
        ),
    ),
    Source(
        name="synthetic",
        model="synthetic",
        hosts=4,
        rate="500mbit",
        targets=(
            ("4 ranks", 4, ()),
            ("faster", 2, (f"{RATE}=1gbit",)),
            ("slower, 4 ranks", 4, (f"{RATE}=200mbit",)),
            ("small buckets, 4 ranks", 4, (f"{CAP}=1",)),
            ("sharded", 2, ("parallel=fsdp",)),
            ("sharded, 4 ranks", 4, ("parallel=fsdp",)),
        ),
    ),
    Source(
        name="late rank",
        model="synthetic",
        hosts=4,
        rate="500mbit",
        always=LATE,
        targets=(
            ("faster", 2, (f"{RATE}=1gbit",)),
            ("slower, 4 ranks", 4, (f"{RATE}=200mbit",)),
        ),
    ),
)


def _sets(words: tuple[str, ...], key: str) -> bool:
    return any(word.startswith(f"{key}=") for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One target: errors of the step (forecast over measured, less 1) and of the efficiency (points)."""

    simulated: float
    predicted: float | None
    simulated_points: float
    predicted_points: float | None
    one_points: float


def wanted(parent: Path) -> list[tuple[Path, list[str]]]:
    """All runs, with the overrides that measure them."""
    runs = []
    for source in SOURCES:
        runs.append((folder_of(parent, source.name), source.overrides("[1,2]", (), BUDGET_S["source"])))
        runs += [
            (
                folder_of(parent, source.name, name),
                source.overrides(f"[{ranks}]", changed, BUDGET_S["target"]),
            )
            for name, ranks, changed in source.targets
        ]
    return runs


def folder_of(parent: Path, *names: str) -> Path:
    return parent / "-".join(names).replace(",", "").replace(" ", "_")


def measure(parent: Path, seconds: float) -> int:
    """Measure what is not there yet, until the time is over. How many runs are left."""
    begin = time.monotonic()
    left = [(folder, words) for folder, words in wanted(parent) if not RunFolder(folder).analysis.is_file()]
    for number, (folder, words) in enumerate(left):
        if time.monotonic() - begin > seconds:
            return len(left) - number
        harness.measure(folder, *words)
        print(f"measured {folder.name}", flush=True)
    return 0


def simulated(source: Run, words: list[str], ranks: int) -> Simulated:
    """A step of so many ranks, from a run. SystemExit where there is none."""
    asked = to_simulation([*words, f"world_sizes=[{ranks}]"], read_config(source.folder))
    parallel = asked.strategies[0]
    machine, mesh = Measured(asked, source), mesh_of(parallel, ranks)
    answer = simulate(
        simulation(
            asked.spec,
            mesh,
            machine.inputs,
            batch_of(asked.spec, mesh),
            own_links=machine.links(mesh),
            whole=False,
        )
    )
    if answer.failed is not None:
        raise SystemExit(f"{' '.join(words)} at {ranks}: {answer.failed}")
    return answer


def today(source: Run, words: list[str], ranks: int) -> tuple[float | None, float | None]:
    """Step in ms and efficiency as `scaling predict` has them; None where it cannot say."""
    try:
        (point,) = predict(source, *words, f"world_sizes=[{ranks}]", from_world_size=2).points
    except ScalingError:
        return None, None
    if point.step_ms is None:
        return None, None
    return point.step_ms.value, None if point.efficiency is None else point.efficiency.value


def judge(parent: Path) -> int:
    """Simulate each target, print it beside what was measured, and hold all to the bars."""
    rows: list[Row] = []
    print(f"{'':<46} {'step, ms':>10} {'simulated':>10} {'predictor':>10}  {'efficiency':>10} {'simulated':>10} "
          f"{'predictor':>10} {'1.0':>7}")  # fmt: skip
    for source in SOURCES:
        folder = folder_of(parent, source.name)
        run = Run(folder)
        why = left_out(source.model, run.analysis, run.analysis.points[-1])
        alone_ns = simulated(run, [], 1).steps[0].step_ns
        for name, ranks, changed in source.targets:
            analysis = read_analysis(RunFolder(folder_of(parent, source.name, name)))
            point = next(p for p in analysis.points if p.world_size == ranks)
            what = f"{source.name}: {name}"
            reason = why or left_out(source.model, analysis, point)
            if reason:
                print(f"{what:<46} left out: {reason}", flush=True)
            assert point.step_ms is not None
            assert point.efficiency is not None
            step_ns = simulated(run, list(changed), ranks).steps[0].step_ns
            predicted_ms, predicted = today(run, list(changed), ranks)
            truth, measured_ms = point.efficiency.value, point.step_ms.value
            row = Row(
                simulated=step_ns / 1e6 / measured_ms - 1,
                predicted=None if predicted_ms is None else predicted_ms / measured_ms - 1,
                simulated_points=alone_ns / step_ns - truth,
                predicted_points=None if predicted is None else predicted - truth,
                one_points=1 - truth,
            )
            print(
                f"{what:<46} {measured_ms:>10.1f} {row.simulated:>+10.1%} {_maybe(row.predicted):>10}  "
                f"{truth:>10.1%} {row.simulated_points:>+10.1%} {_maybe(row.predicted_points):>10} "
                f"{row.one_points:>+7.1%}",
                flush=True,
            )
            if not reason:
                rows.append(row)
    if not rows:
        return harness.skipped("simulation", "every run was left out")
    return _held(rows)


def _maybe(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def _held(rows: list[Row]) -> int:
    """The bars. Where the predictor answers, both are compared on the same rows."""
    steps = [abs(row.simulated) for row in rows]
    off = mean(abs(row.simulated_points) for row in rows)
    ones = mean(abs(row.one_points) for row in rows)
    figures = {"median": median(steps), "worst": max(steps), "of_one": off / ones}
    met = {name: value <= BARS[name] for name, value in figures.items()}
    both = [(abs(row.simulated), abs(row.predicted)) for row in rows if row.predicted is not None]
    if both:
        ours, theirs = zip(*both, strict=True)
        print(
            f"step, the {len(both)} rows that the predictor answers: simulated {median(ours):.1%} in the median, "
            f"{max(ours):.1%} at the worst; predictor {median(theirs):.1%}, {max(theirs):.1%}"
        )
    for name, value in figures.items():
        print(f"{name:<8} {value:6.1%}  bar {BARS[name]:.0%}  {'met' if met[name] else 'MISSED'}")
    rounded = {name: round(value, 4) for name, value in figures.items()}
    return harness.result("simulation", ok=all(met.values()), cells=len(rows), **rounded)


def main() -> int:
    """Run it."""
    parser = harness.parser(__doc__)
    parser.add_argument("--keep", type=Path, help="keep the runs here, and take those that are here")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this time")
    options = parser.parse_args()
    if not harness.has_namespaces():
        return harness.CANNOT
    with tempfile.TemporaryDirectory(prefix="scaling-simulation-") as scratch:
        parent = options.keep or Path(scratch)
        left = measure(parent, options.seconds)
        if left:
            return harness.skipped("simulation", f"{left} runs are still to be measured")
        return judge(parent)


if __name__ == "__main__":
    exit_with(main)
