"""Kill a run at random times, resume it, kill it again: does it end with every trial measured, each once? Bar: always.

    python benchmarks/resume.py [--kills N] [--seed S]

Each run (2 local ranks, world sizes 1 and 2, two repeats) is killed KILLS_A_RUN times with SIGKILL,
each time at a random moment of the time that a whole run takes, resumed, and at last left alone.
Then every trial has to be done, in exactly as many launches as there are repeats, with whole records,
nothing that was finished may have been touched again, and no process may be left. Exit 1 where not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
KILLS = 30
KILLS_A_RUN = 5
REPEATS = 2
WHOLE_S = 300
"""A resumed run that is left alone has to be through by then."""
OVERRIDES = (
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "model=synthetic",
    "model.param_mb=1",
    "model.compute_ms=5",
    "measure=quick",
    "measure.budget_s=2",
    "measure.fabric_max=4KiB",
    f"repeats={REPEATS}",
    "tracking=disabled",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    bad = kills = 0
    whole_s = 0.0
    print("#  run  kills  moments of the kills, s          launches  lost  trials            verdict")
    while kills < asked.kills:
        with tempfile.TemporaryDirectory(prefix="scaling-resume-") as parent:
            run = Path(parent) / "run"
            if not whole_s:
                whole_s = undisturbed(run.with_name("first"))
            count = min(KILLS_A_RUN, asked.kills - kills)
            moments = [rng.uniform(0.0, whole_s) for _ in range(count)]
            wrong = survives(run, moments)
            kills += count
            bad += bool(wrong)
            status = json.loads((run / "status.json").read_text())
            states = [launch["state"] for launch in status["launches"]]
            trials = " ".join(f"{t['world_size']}:{t['launches']}" for t in status["trials"])
            times = " ".join(f"{m:.1f}" for m in moments)
            print(
                f"{kills // KILLS_A_RUN:6} {count:6}  {times:32} {len(states):8} {states.count('lost'):5}  "
                f"{trials:16}  {'; '.join(wrong) or 'complete, each once'}",
                flush=True,
            )
    print(f"{kills} kills: {bad} runs that did not end complete with each trial once (bar: 0)")
    return int(bad > 0)


def undisturbed(run: Path) -> float:
    """How long a whole run takes, s."""
    begin = time.monotonic()
    done = start(f"run_dir={run}")
    assert done.wait(WHOLE_S) == 0, "the run fails without being killed"
    return time.monotonic() - begin


def survives(run: Path, moments: list[float]) -> list[str]:
    """Kill at each moment after a start, resume, and say what is wrong at the end."""
    finished: dict[Path, int] = {}
    wrong: list[str] = []
    for moment in moments:
        driver = start(*arguments(run))
        try:
            driver.wait(moment)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
        wrong += gone(run)
        wrong += [f"{path.parent.name}/{path.name} was written again" for path in touched(finished)]
        finished |= whole(run)
    code = start(*arguments(run)).wait(WHOLE_S)
    wrong += [f"{path.parent.name}/{path.name} was written again" for path in touched(finished)]
    return wrong + gone(run) + complete(run, code)


def arguments(run: Path) -> list[str]:
    return ["--resume", str(run)] if (run / "plan.json").exists() else [f"run_dir={run}"]


def start(*words: str) -> subprocess.Popen[bytes]:
    extra = () if "--resume" in words else OVERRIDES
    return subprocess.Popen(
        [sys.executable, "-m", "scaling.cli", "run", *extra, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def whole(run: Path) -> dict[Path, int]:
    """Rank files of launches that finished something, with the time they were last written."""
    if not (run / "status.json").exists():
        return {}
    launches = json.loads((run / "status.json").read_text())["launches"]
    done = [run / "launches" / str(x["index"]) for x in launches if x["finished"]]
    return {path: path.stat().st_mtime_ns for folder in done for path in folder.glob("rank-*.jsonl")}


def touched(finished: dict[Path, int]) -> list[Path]:
    return [path for path, written in finished.items() if path.stat().st_mtime_ns != written]


def gone(run: Path, seconds: float = 20) -> list[str]:
    """Whether all that the driver started ends by itself."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(str(run) in line for line in command_lines()):
            return []
        time.sleep(0.1)
    return ["processes were left"]


def command_lines() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def complete(run: Path, code: int) -> list[str]:
    wrong = [] if code == 0 else [f"exit {code}"]
    status = json.loads((run / "status.json").read_text())
    analysis = json.loads((run / "analysis.json").read_text())
    for trial, read in zip(status["trials"], analysis["trials"], strict=True):
        name = f"world size {trial['world_size']}"
        if trial["status"] != "done" or read["status"] != "done":
            wrong.append(f"{name} is {trial['status']}")
        if len(trial["launches"]) != REPEATS:
            wrong.append(f"{name} was finished {len(trial['launches'])} times")
        if read["launches"] != trial["launches"]:
            wrong.append(f"{name} is read from {read['launches']}, finished in {trial['launches']}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
