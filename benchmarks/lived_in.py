"""Runs beside what an ordinary machine does: no false cause at high confidence, and a slow link is found.

    python benchmarks/lived_in.py [--into FILE] [--minutes M] [--runs N]

First 40 runs: the demo's fast and slow link, and `topology=local model=mlp`, on the machine as it is, beside a process
that is busy for half of each second, beside one that streams memory, and beside package installs. Then 20 with a link
whose data take about 30 % of the step, five beside each. Each run becomes a line of FILE, and what FILE has is not run
again: the same command goes on where it was cut or where `--minutes` ended it. The table has all lines.
Bars: no cause at high confidence but those of two ranks on shared cores (`neighbours`, `overlap`) and the link; the
slow link named first, at any confidence, in nine of ten runs, and the link of 30 % named in 18 of 20.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Any

import harness
from ending import exit_with

LINK = ("link_bandwidth", "link_latency", "communication")
POSSIBLE = ("neighbours", "overlap", *LINK)
NO_CAUSE = ("undecided", "scales_well", "optimizer", "launch_bound")
BESIDE = {
    "as it is": "",
    "half busy": "import time\nwhile True:\n t = time.time()\n while time.time() - t < .5: pass\n time.sleep(.5)",
    "streams memory": "import numpy\na = numpy.ones(2**26)\nwhile True: a += 1",
    "installs": "import tempfile, venv\nwhile True:\n with tempfile.TemporaryDirectory(prefix='scaling-lived-') as d:\n"
    "  venv.create(d, with_pip=True)",
}
FAST, SLOW, LOCAL, THIRTY = RUNS = ("fast link", "slow link", "local", "30 % link")
OVERRIDES = {
    FAST: ("experiment=demo", "topology=emulated_nvlink"),
    SLOW: ("experiment=demo", "topology=emulated_pcie"),
    LOCAL: ("topology=local", "model=mlp", "world_sizes=[1,2]", "measure=quick"),
    THIRTY: ("experiment=demo", "topology=emulated_pcie", "topology.link.rate=130mbit"),
}
FIRST, TIMES_LINK = 40, 5
LEAST = {SLOW: 0.9, THIRTY: 0.9}
"""Share of the runs in which the link is named: first over the slow one, at all over the other."""


def planned() -> list[tuple[str, str]]:
    """(run, beside) of all runs, in the order in which they run."""
    first = [(run, beside) for beside, run in product(BESIDE, RUNS[:3])]
    return [*(first * FIRST)[:FIRST], *[(THIRTY, beside) for beside in BESIDE] * TIMES_LINK]


@contextmanager
def beside(source: str) -> Iterator[None]:
    """Run a process with this source meanwhile, and all that it starts; none if it is empty."""
    if not source:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-c", source], start_new_session=True, stderr=subprocess.DEVNULL
    )  # it is ended by a signal and would say so
    try:
        yield
    finally:
        for ending in (signal.SIGINT, signal.SIGKILL):  # SIGINT: it removes its folders
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, ending)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)


def one_run(run: str, noise: str) -> dict[str, Any]:
    """Run it and return what the table and the bars need."""
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="scaling-lived-") as scratch, beside(BESIDE[noise]):
            analysis = harness.measure(Path(scratch) / "run", *OVERRIDES[run], "tracking=disabled")
    except SystemExit as failed:
        causes = [[f"no answer: {failed}", "high", None]]
        return {"run": run, "beside": noise, "took_s": time.monotonic() - begin, "causes": causes}
    point, quality = analysis["points"][-1], analysis["quality"]
    efficiency, apart = point["efficiency"] or {}, point["overhead"]["equal_arms_apart"]
    return {
        "run": run,
        "beside": noise,
        "took_s": round(time.monotonic() - begin, 1),
        "rounds": efficiency.get("n"),
        "efficiency": [efficiency.get(name) for name in ("value", "low", "high")],
        "equal_arms_apart": apart["value"] if apart else None,
        "contended": any(line.startswith("contended: ") for line in quality["warnings"]),
        "causes": [
            [v["cause"], v["confidence"], (v["share"] or {}).get("value")]
            for v in analysis["verdicts"]
            if v["cause"] not in ("optimizer", "launch_bound")
        ],
    }


def false_of(line: dict[str, Any]) -> list[str]:
    """Causes at high confidence that nothing in the run makes."""
    return [
        c for c, confidence, _ in line["causes"] if confidence == "high" and c not in (*NO_CAUSE, *POSSIBLE)
    ]


def link_named(line: dict[str, Any]) -> bool:
    """Whether the link is named: first over the slow one, at all elsewhere."""
    causes = [cause for cause, *_ in line["causes"]]
    return any(cause in LINK for cause in (causes[:1] if line["run"] == SLOW else causes))


def row(line: dict[str, Any]) -> str:
    """A line of the table."""
    ends, rounds, apart = (line.get(name) for name in ("efficiency", "rounds", "equal_arms_apart"))
    efficiency = "unknown" if not ends or None in ends else "{:.2f} [{:.2f}, {:.2f}]".format(*ends)
    false = false_of(line)
    told = "FALSE" if false else "right" if line["run"] not in LEAST or link_named(line) else "not found"
    causes = ", ".join(f"{c} {'' if s is None else f'{s:.0%} '}({sure})" for c, sure, s in line["causes"])
    return (
        f"{line['run']:<10} {line['beside']:<15} {efficiency:<20} {rounds or 0:>6} {apart or 0:>6.1%} "
        f"{line['took_s']:>5.0f} {'yes' if line.get('contended') else 'no':<9} {told:<9} {causes or 'none'}"
    )


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no run begins later")
    parser.add_argument("--runs", type=int, default=60, help="only the first of the 60")
    options = parser.parse_args()
    if not harness.has_namespaces():
        return harness.CANNOT
    end = time.monotonic() + 60 * options.minutes
    print(
        f"{'run':<10} {'beside':<15} {'efficiency':<20} {'rounds':>6} {'equal':>6} {'s':>5} {'contended':<9} "
        f"{'told':<9} causes (confidence)"
    )
    lines: list[dict[str, Any]] = []
    if options.into and options.into.exists():
        lines = [json.loads(text) for text in options.into.read_text().splitlines()]
    for line in lines:
        print(row(line))
    kept = Counter((line["run"], line["beside"]) for line in lines)
    for which in islice(planned(), options.runs):
        if kept[which]:
            kept[which] -= 1
            continue
        if time.monotonic() > end:
            break
        lines.append(one_run(*which))
        if options.into:
            with options.into.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
        print(row(lines[-1]), flush=True)
    false = [f"{line['run']} beside {line['beside']}: {cause}" for line in lines for cause in false_of(line)]
    hits = {run: [link_named(line) for line in lines if line["run"] == run] for run in LEAST}
    print(
        f"{len(lines)} of {options.runs} runs; false at high confidence: {', '.join(false) or 'none'}; "
        + "; ".join(f"{run} found in {sum(each)} of {len(each)}" for run, each in hits.items())
    )
    whole = len(lines) >= options.runs
    ok = whole and not false and all(sum(each) >= LEAST[run] * len(each) for run, each in hits.items())
    figures = {run: [sum(each), len(each)] for run, each in hits.items()}
    return harness.result("lived_in", ok=ok, runs=len(lines), false_at_high=len(false), link_found=figures)


if __name__ == "__main__":
    exit_with(main)
