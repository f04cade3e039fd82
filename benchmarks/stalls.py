"""A loop that stalls every 20th step: what its report says a step of that costs, and the truth.

    python benchmarks/stalls.py [--repeats N]

`r07_checkpoint_every_20.py` of `../shared/data/loops` trains on one and on two Gloo ranks, and naps 0, 100, 500 or
1,500 ms every 20 steps, on rank 0 or on all ranks; each world size is launched N times, in turns. Bars: each nap is
found at its distance and costs within 5 % of ms / 20 a step; none is found where there is none; no rank is named late;
the interval of the efficiency meets that without naps; no cause is named at medium or high that is not named without
naps. Exit 1 if one is missed, 77 without the loop.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import harness
from ending import exit_with, run

LOOPS = Path(__file__).parents[2] / "shared" / "data" / "loops"
LOOP, ONE = "r07_checkpoint_every_20.py", " and rank == 0"
NAPS_MS, EVERY, OFF, LIMIT_S = (0, 100, 500, 1500), 20, 0.05, 900


def report(script: Path, ms: int, repeats: int) -> dict:
    """The report of a study of the script."""
    folder = script.parent / f"run-{ms}"
    environment = {**os.environ, "MS": str(ms), "PYTHONPATH": str(LOOPS)}
    options = ("--world-sizes", "1,2", "--no-probe", f"repeats={repeats}", f"run_dir={folder}")
    done = run([*harness.SCALING, "launch", *options, str(script)], env=environment, timeout_s=LIMIT_S)
    if done.returncode:
        raise SystemExit(f"{script.name} at {ms} ms: status {done.returncode}")
    return json.loads((folder / "study.json").read_text())


def right(point: dict, ms: int) -> bool:
    """Print a row, and whether the stall is within the bars."""
    costs = [stall["cost_ms"] for stall in point["stalls"] if stall["every_steps"] == EVERY]
    late = point["straggler"]
    cost = costs[0]["value"] if costs else None
    print(f"  {point['world_size']} ranks: {cost} for {ms / EVERY} ms a step, late: {late and late['rank']}")
    if late is not None or len(point["stalls"]) != (ms > 0):
        return False
    return not ms or (cost is not None and abs(cost - ms / EVERY) <= OFF * ms / EVERY)


def causes(told: dict) -> set[str]:
    """What is named at medium or high."""
    return {verdict["cause"] for verdict in told["verdicts"] if verdict["confidence"] != "low"}


def unmoved(told: dict, plain: dict) -> bool:
    """Print the efficiency at two ranks and the causes, and whether they are those of the loop without naps."""
    here, there = (each["points"][-1]["efficiency"] for each in (told, plain))
    others = sorted(causes(told) - causes(plain))
    print(
        f"  efficiency {here['value']:.3f} [{here['low']:.3f}, {here['high']:.3f}], other causes: {others or 'none'}"
    )
    return here["low"] <= there["high"] and there["low"] <= here["high"] and not others


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    if not (LOOPS / LOOP).exists():
        print(f"{LOOPS / LOOP}: not there")
        return harness.CANNOT
    rows = []
    with tempfile.TemporaryDirectory() as kept:
        for who in ("rank 0", "all"):
            folder = Path(kept) / who.replace(" ", "")
            folder.mkdir()
            text = (LOOPS / LOOP).read_text()
            (folder / LOOP).write_text(text if who == "rank 0" else text.replace(ONE, ""))
            plain = None
            for ms in NAPS_MS:
                print(f"{ms} ms on {who}")
                told = report(folder / LOOP, ms, repeats)
                plain = plain or told
                rows += [right(point, ms) for point in told["points"]] + [unmoved(told, plain)]
    print(json.dumps({"checks": len(rows), "right": sum(rows)}))
    return 0 if all(rows) else 1


if __name__ == "__main__":
    exit_with(main)
