"""Predict FSDP and HSDP over four ranks from FSDP over two, on other links, and measure what was predicted.

    python benchmarks/mesh_prediction.py [--where links|simulated|both] [--out FILE] [--keep DIR]

links: emulated hosts of one rank each. The source is FSDP over two hosts at 500 Mbit; FSDP over 2 and 4 and HSDP over
2 x 2 are predicted at 200, 500 and 1000 Mbit and measured. simulated: accelerators on the virtual clock, with one kind
of link (5 GB/s); FSDP over 4 and HSDP over 2 x 2 of them, in two models. Those times are exact on any machine.

A contended run is measured again, twice at most. --keep DIR keeps the runs there and goes on where it was cut.

Bars (exit 1 when missed): median error of the step 5 %, worst 10 %. Exit 77 where hosts cannot be emulated.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import harness
from ending import exit_with, run
from truth_parts.runs import measure, repeated

LAYERS, COMPUTE_MS, SOURCE_MBIT = 2, 40, 500
RATES_MBIT = (200, 500, 1000)
MEDIAN, WORST = 0.05, 0.10
COMMON = ("model=synthetic", f"model.layers={LAYERS}", f"model.compute_ms={COMPUTE_MS}", "tracking=disabled")
HSDP = ("parallel=hsdp", "parallel.shard=2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is predicted and measured."""

    name: str
    source: str
    ranks: int
    parallel: tuple[str, ...]
    measured: tuple[str, ...]
    """Overrides of the run that measures it."""
    asked: tuple[str, ...]
    """Overrides of the prediction, beside the strategy and the world size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A target's step, predicted and measured."""

    target: Target
    contended: int
    predicted_ms: float
    measured_ms: float
    error: float
    held: bool


def links_of(hosts: int, mbit: int) -> tuple[str, ...]:
    """A run over emulated hosts."""
    return (
        *COMMON,
        "model.param_mb=8",
        "topology=emulated_pcie",
        f"topology.hosts={hosts}",
        f"topology.link.rate={mbit}mbit",
        f"world_sizes=[{hosts}]",
        "measure=quick",
        f"measure.budget_s={60 if hosts == 2 else 90}",
        "measure.rounds_max=6",
    )


def simulated_of(ranks: int, param_mb: int) -> tuple[str, ...]:
    """A run over simulated accelerators."""
    return (
        *COMMON,
        f"model.param_mb={param_mb}",
        "topology=local",
        "topology.device=sim",
        f"topology.ranks_per_host={ranks}",
        "topology.simulated.link_gb_s=5",
        f"world_sizes=[{ranks}]",
        "measure=quick",
        "measure.budget_s=300",
        "measure.rounds_max=3",
    )


def cells(where: str) -> tuple[dict[str, tuple[str, ...]], list[Target]]:
    """Sources by name, with their overrides, and the targets."""
    sources: dict[str, tuple[str, ...]] = {}
    targets: list[Target] = []
    if where in ("links", "both"):
        sources["links"] = ("parallel=fsdp", *links_of(2, SOURCE_MBIT))
        for mbit in RATES_MBIT:
            asked = (f"topology.link.rate={mbit}mbit",)
            for name, hosts, parallel in (
                ("fsdp", 2, ("parallel=fsdp",)),
                ("fsdp", 4, ("parallel=fsdp",)),
                ("hsdp", 4, HSDP),
            ):
                if (hosts, mbit) == (2, SOURCE_MBIT):
                    continue
                targets.append(
                    Target(
                        name=f"links-{name}-{hosts}-{mbit}",
                        source="links",
                        ranks=hosts,
                        parallel=parallel,
                        measured=links_of(hosts, mbit),
                        asked=(*asked, f"topology.hosts={hosts}"),
                    )
                )
    if where in ("simulated", "both"):
        for param_mb in (32, 128):
            source = f"simulated-{param_mb}"
            sources[source] = ("parallel=fsdp", *simulated_of(2, param_mb))
            for name, parallel in (("fsdp", ("parallel=fsdp",)), ("hsdp", HSDP)):
                targets.append(
                    Target(
                        name=f"simulated-{name}-4-{param_mb}",
                        source=source,
                        ranks=4,
                        parallel=parallel,
                        measured=simulated_of(4, param_mb),
                        asked=("topology.ranks_per_host=4",),
                    )
                )
    return sources, targets


def predicted(folder: Path, target: Target) -> dict[str, float]:
    """The step that `scaling predict` gives, as its JSON has it. SystemExit where it cannot."""
    words = [*target.parallel, f"world_sizes=[{target.ranks}]", *target.asked]
    done = run([*harness.SCALING, "predict", str(folder), *words, "--json", "--anyway"])
    if done.returncode:
        raise SystemExit(f"scaling predict {' '.join(words)}: {done.stderr[-harness.ERROR_CHARS :]}")
    (point,) = json.loads(done.stdout)["points"]
    if point["step_ms"] is None:
        raise SystemExit(f"scaling predict {' '.join(words)}: {point['why']}")
    return dict(point["step_ms"])


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--where", choices=("links", "simulated", "both"), default="both")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--keep", type=Path, help="keep the runs here, and use those that are")
    options = parser.parse_args()
    if options.where != "simulated" and not harness.has_namespaces():
        return harness.CANNOT
    sources, targets = cells(options.where)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="scaling-meshes-") as scratch:
        folder = (options.keep or Path(scratch)).absolute()
        for name, overrides in sources.items():
            measure(folder / f"source-{name}", list(overrides))
        print(
            f"{'target':<24} {'predicted ms':>12} {'measured ms':>12} {'error':>8} {'held':>6} {'again':>6}"
        )
        for target in targets:
            step = predicted(folder / f"source-{target.source}", target)
            _, point, contended = measure(folder / target.name, [*target.parallel, *target.measured])
            took = point["step_ms"]["value"]
            inside = step["low"] is not None and step["low"] <= took <= step["high"]
            rows.append(
                Row(
                    target=target,
                    contended=contended,
                    predicted_ms=step["value"],
                    measured_ms=took,
                    error=step["value"] / took - 1,
                    held=inside,
                )
            )
            last = rows[-1]
            print(
                f"{target.name:<24} {last.predicted_ms:>12.1f} {took:>12.1f} {last.error:>+8.1%} {last.held!s:>6} "
                f"{repeated(contended):>6}",
                flush=True,
            )
    errors = [abs(row.error) for row in rows]
    median, worst = statistics.median(errors), max(errors)
    print(f"median error {median:.1%}, bar {MEDIAN:.0%}; worst {worst:.1%}, bar {WORST:.0%}")
    if options.out:
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    ok = median <= MEDIAN and worst <= WORST
    return harness.result("mesh_prediction", ok=ok, median=median, worst=worst, targets=len(rows))


if __name__ == "__main__":
    exit_with(main)
