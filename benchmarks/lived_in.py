"""Runs beside what an ordinary machine does: no false cause at high confidence, and a slow link is found.

    python benchmarks/lived_in.py [--times N] [--minutes M]

Runs the demo's fast link and `topology=local model=mlp`, in which nothing but the second rank costs anything, and
the demo's slow link, which takes most of the step: on the machine as it is, beside a process that is busy for half of
each second, and beside one that streams memory. Turns go on until `--times` (3) of each, or `--minutes` (no limit).
Bars: no cause but those of two ranks on shared cores (`neighbours`, `overlap`, the link) at high confidence without a
slow link; the link named first over the slow one in nine of ten runs, at any confidence.

For a quiet quarter of an hour: `python benchmarks/plain_arms.py` and then this with `--minutes 10`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import harness
from ending import exit_with

LINK = ("link_bandwidth", "link_latency", "communication")
POSSIBLE = ("neighbours", "overlap", *LINK)
NO_CAUSE = ("undecided", "scales_well", "optimizer", "launch_bound")
BESIDE = {
    "as it is": "",
    "busy half of each second": "import time\nwhile True:\n t = time.time()\n while time.time() - t < .5: pass\n"
    " time.sleep(.5)",
    "streams memory": "import numpy\na = numpy.ones(2**26)\nwhile True: a += 1",
}
RUNS = {
    "fast link": ("experiment=demo", "topology=emulated_nvlink"),
    "slow link": ("experiment=demo", "topology=emulated_pcie"),
    "local": ("topology=local", "model=mlp", "world_sizes=[1,2]", "measure=quick"),
}
FOUND_LEAST = 0.9


@contextmanager
def beside(source: str) -> Iterator[None]:
    """Run a process with this source meanwhile; none if it is empty."""
    if not source:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", source])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    if not harness.has_namespaces():
        return harness.CANNOT
    end = time.monotonic() + 60 * options.minutes
    seen: dict[tuple[str, str], list[str]] = {(run, noise): [] for noise in BESIDE for run in RUNS}
    wrong: list[str] = []
    hits = Counter[str]()
    print(f"{'run':<10} {'beside':<25} {'efficiency':<22} {'equal arms':>10}  first verdict")
    for turn in count():
        for (run, noise), titles in seen.items():
            if turn >= options.times or time.monotonic() > end:
                break
            with tempfile.TemporaryDirectory(prefix="scaling-lived-") as scratch, beside(BESIDE[noise]):
                analysis = harness.measure(Path(scratch) / "run", *RUNS[run], "tracking=disabled")
            point, verdicts = analysis["points"][-1], analysis["verdicts"]
            first = next((v for v in verdicts if v["cause"] not in ("optimizer", "launch_bound")), None)
            title = f"{first['cause']} ({first['confidence']})" if first else "none"
            titles.append(title)
            efficiency, apart = point["efficiency"] or {}, point["overhead"]["equal_arms_apart"]
            ends = [efficiency.get(name) for name in ("value", "low", "high")]
            text = "unknown" if None in ends else "{:.2f} [{:.2f}, {:.2f}]".format(*ends)
            print(
                f"{run:<10} {noise:<25} {text:<22} {apart['value'] if apart else 0:>10.1%}  {title}",
                flush=True,
            )
            hits[run] += bool(first) and first["cause"] in LINK
            wrong += [
                f"{run}, {noise}: {v['cause']}"
                for v in verdicts
                if v["confidence"] == "high" and v["cause"] not in (*NO_CAUSE, *POSSIBLE)
            ]
        else:
            continue
        break
    slow = sum(len(titles) for (run, _), titles in seen.items() if run == "slow link")
    done = sum(map(len, seen.values()))
    print(
        f"{done} runs; false at high confidence: {', '.join(wrong) or 'none'}; "
        f"slow link found in {hits['slow link']} of {slow}"
    )
    ok = not wrong and (not slow or hits["slow link"] >= FOUND_LEAST * slow)
    return harness.result(
        "lived_in", ok=ok, runs=done, false_at_high=len(wrong), slow_link=[hits["slow link"], slow]
    )


if __name__ == "__main__":
    exit_with(main)
