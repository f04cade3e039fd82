"""Inject one fault at a time into small models of every family, and see whether it is named. Bar: 95 % of the cells.

    python benchmarks/zoo.py [--models NAME...] [--faults NAME...] [--keep FOLDER]

Two emulated hosts of one rank each, over a link of 1 Gbit/s. Each cell is a run of `measure=quick`. A fault has to be
the first verdict, with the right rank; a control, and every other verdict, must name nothing that was not put in. What
tiny models on two cores really lose (the link, neighbours, DDP's own work, overlap) may be named beside the fault. The
cost that is found has to be within 5 % or 3 ms of what was put in, in the median. A false cause at high confidence
fails the benchmark whatever the share of right ones. Exit 1 if a bar is missed.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from ending import exit_with

RIGHT, OFF, OFF_MS = 0.95, 0.05, 3.0
TCP_SHARE = 1448 / 1514
RATE_MBIT, SLOW_MBIT, LATE_MS = 1000, 40, 40
COMMON = (
    "topology=emulated_pcie",
    "world_sizes=[1,2]",
    "measure=quick",
    "measure.budget_s=20",
    "measure.fabric_max=1MiB",
    "tracking=disabled",
)
MODELS: Mapping[str, tuple[str, ...]] = {
    "mlp": ("model=mlp", "model.width=160", "model.depth=3", "batch_per_rank=512"),
    "highmem_cnn": ("model=highmem_cnn", "model.channels=16", "model.hidden=8", "batch_per_rank=48"),
    "resnet": (
        "model=resnet18",
        "model.depths=[1,1]",
        "model.widths=[16,32]",
        "model.image=64",
        "model.classes=10",
        "batch_per_rank=16",
    ),
    "vit": (
        "model=vit",
        "model.width=64",
        "model.layers=2",
        "model.heads=2",
        "model.feedforward=128",
        "model.image=64",
        "model.patch=8",
        "model.classes=10",
        "batch_per_rank=32",
    ),
    "gpt2": (
        "model=gpt2",
        "model.width=64",
        "model.layers=2",
        "model.heads=2",
        "model.vocabulary=512",
        "model.context=64",
        "model.sequence=64",
        "batch_per_rank=16",
    ),
}
"""Families in sizes whose step takes some 50 ms on a core, with less than half a MiB of gradients."""
TINY = ("neighbours", "strategy_overhead", "overlap", "link_latency", "link_bandwidth", "slow_path")
"""What these models really lose on two cores."""
NO_CAUSE = ("scales_well", "undecided")


@dataclass(frozen=True)
class Fault:
    """What is put in, and what has to be found."""

    overrides: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    """One of them has to be the first verdict; none: no verdict but TINY may be named."""
    rank: int | None = None
    phase: str = ""
    """Of the straggler."""
    cost: str = ""
    """What has to be LATE_MS: `straggler`, or a term of the loss."""
    contended: bool = False
    """The run has to be called contended, and no verdict may be sure."""


FAULTS: Mapping[str, Fault] = {
    "control": Fault(),
    "rank 1 late in input": Fault(
        ("inject.rank=1", f"inject.input_ms={LATE_MS}"), ("straggler",), 1, "input", "straggler"
    ),
    "rank 0 late in forward": Fault(
        ("inject.rank=0", f"inject.compute_ms={LATE_MS}"), ("straggler",), 0, "forward", "straggler"
    ),
    "rank 1 late in host": Fault(
        ("inject.rank=1", f"inject.host_ms={LATE_MS}"), ("straggler",), 1, "host", "straggler"
    ),
    "slow loader": Fault((f"inject.input_ms={LATE_MS}",), ("input",), cost="input"),
    "slow link": Fault((f"topology.link.rate={SLOW_MBIT}mbit",), ("link_bandwidth", "link_latency")),
    "forgotten no_sync": Fault(
        ("accumulation_steps=4", "inject.wrong_no_sync=true", "topology.link.rate=100mbit"),
        ("link_bandwidth", "link_latency"),
    ),
    "small buckets": Fault(
        ("ddp.bucket_cap_mb=0.01", "topology.link.rate=100mbit"), ("link_latency", "link_bandwidth")
    ),
    "contention": Fault(("inject.contention=2",), contended=True),
}


@dataclass(frozen=True)
class Cell:
    """One run, graded."""

    model: str
    fault: str
    first: str
    right: bool
    false: tuple[str, ...]
    """Causes that were not put in, with their confidence."""
    off_ms: float | None
    """Cost found minus cost put in."""
    took_s: float

    @property
    def surely_false(self) -> bool:
        """Whether a cause that was not put in is named at high confidence."""
        return any(text.endswith("high") for text in self.false)


def grade(model: str, name: str, analysis: Mapping[str, Any], took_s: float) -> Cell:
    """Hold a run's verdicts at two ranks against the fault."""
    fault, point = FAULTS[name], analysis["points"][-1]
    named = [v for v in analysis["verdicts"] if v["world_size"] == 2 and v["cause"] not in NO_CAUSE]
    allowed = (*TINY, *fault.causes)
    false = tuple(f"{v['cause']} {v['confidence']}" for v in named if v["cause"] not in allowed)
    first = named[0]["cause"] if named else "none"
    straggler = point["straggler"]
    right = first in fault.causes if fault.causes else not false
    if fault.rank is not None:
        right &= straggler is not None and (straggler["rank"], straggler["phase"]) == (
            fault.rank,
            fault.phase,
        )
    if fault.contended:
        called = any(w.startswith("contended") for w in analysis["quality"]["warnings"])
        right = called and all(v["confidence"] == "low" for v in named)
    found = cost_ms(fault, point)
    return Cell(model, name, first, right, false, None if found is None else found - LATE_MS, took_s)


def cost_ms(fault: Fault, point: Mapping[str, Any]) -> float | None:
    """What the run says that the fault costs a step."""
    if fault.cost == "straggler":
        return point["straggler"] and float(point["straggler"]["cost_ms"]["value"])
    share = fault.cost and point["loss"] and point["loss"][fault.cost]
    return float(share["value"] * point["step_ms"]["value"]) if share else None


def measured(model: str, name: str, folder: Path) -> Cell:
    """Run one cell."""
    given = (*COMMON, f"topology.link.rate={RATE_MBIT}mbit", *MODELS[model], *FAULTS[name].overrides)
    overrides = {text.split("=", 1)[0]: text for text in given}
    begin = time.monotonic()
    analysis = harness.measure(folder, *overrides.values())
    cell = grade(model, name, analysis, time.monotonic() - begin)
    off = "" if cell.off_ms is None else f"  {cell.off_ms:+.1f} ms"
    step = analysis["points"][-1]["step_ms"]
    print(
        f"{'ok  ' if cell.right and not cell.false else 'MISS'} {model:12} {name:24} first {cell.first:16}{off}"
        f"  step {step['value'] if step else 0:.0f} ms  {cell.took_s:.0f} s  {' '.join(cell.false)}",
        flush=True,
    )
    return cell


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells, print each, and hold all of them against the bars."""
    parser = harness.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--faults", nargs="+", choices=[*FAULTS], default=[*FAULTS])
    parser.add_argument("--keep", type=Path, help="folder for the runs, which are deleted otherwise")
    asked = parser.parse_args(arguments)
    if not harness.has_namespaces():
        return harness.skipped("zoo", "no user namespaces")
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="zoo-"))
    try:
        cells = [
            measured(model, fault, folder / f"{model}-{fault.replace(' ', '_')}")
            for fault in asked.faults
            for model in asked.models
        ]
    finally:
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    right = sum(cell.right for cell in cells) / len(cells)
    surely = [f"{c.model}, {c.fault}: {' '.join(c.false)}" for c in cells if c.surely_false]
    off = [abs(c.off_ms) for c in cells if c.off_ms is not None]
    typical_ms = statistics.median(off) if off else 0.0
    print(f"{right:.0%} of {len(cells)} cells right; cost off by {typical_ms:.1f} ms in the median")
    for text in surely:
        print(f"false at high confidence: {text}")
    ok = right >= RIGHT and not surely and typical_ms <= max(OFF * LATE_MS, OFF_MS)
    return harness.result(
        "zoo",
        ok=ok,
        cells=len(cells),
        right=round(right, 3),
        surely_false=len(surely),
        off_ms=round(typical_ms, 2),
    )


if __name__ == "__main__":
    exit_with(main)
