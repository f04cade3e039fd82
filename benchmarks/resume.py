"""End runs at random times, resume them, and check that every trial is measured once. Bar: always.

    python benchmarks/resume.py [--kills N] [--seed S] [--minutes M] [--keep FOLDER]

Each run (2 local ranks, world sizes 1 and 2, two repeats) is ended up to KILLS_A_RUN times, each time at a random
moment within the time of a whole run, by SIGKILL (k), Ctrl-C (i) or SIGTERM (t) to the driver, and resumed; the last
time it runs to its end. Its analysis must then have the same trials with the same arms as that of an uninterrupted
run, each from exactly as many launches as there are repeats. It must name these launches and those that it left out.
Finished files must not be written again, and no process may be left. Exit 1 if a check fails, or if M minutes were
not enough for N ends. Failed runs are copied to FOLDER.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ending import end, exit_with
from harness import SCALING

ROOT = Path(__file__).parents[1]
KILLS = 100
KILLS_A_RUN = 5
MINUTES = 60
REPEATS = 2
WHOLE_S = 300
"""Time limit of a resumed run that is not ended again."""
STOP_S = 60
"""Time limit of a driver that is told to end, with its report; the workers of a killed driver get 20 s."""
HOW = {"k": signal.SIGKILL, "i": signal.SIGINT, "t": signal.SIGTERM}
OFTEN = "kkkit"
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

Json = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    rng, begin = random.Random(asked.seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="scaling-resume-") as parent:
        first = Path(parent) / "run"
        code = until_over(first)
        whole_s = time.monotonic() - begin
        assert code == 0, "the run fails without being ended"
        wanted = trials(first)
    print(f"# a whole run takes {whole_s:.1f} s; ended by SIGKILL (k), Ctrl-C (i), SIGTERM (t)")
    print("#run  ends  after, s                               launches  left out  trials           verdict")
    runs = kills = bad = 0
    while kills < asked.kills and time.monotonic() - begin < asked.minutes * 60:
        with tempfile.TemporaryDirectory(prefix="scaling-resume-") as parent:
            run, runs = Path(parent) / "run", runs + 1
            count = min(KILLS_A_RUN, asked.kills - kills)
            moments = [(rng.uniform(0.0, whole_s), rng.choice(OFTEN)) for _ in range(count)]
            ended, wrong = survives(run, moments)
            wrong += unlike(run, wanted)
            kills, bad = kills + len(ended), bad + bool(wrong)
            if wrong and asked.keep:
                shutil.copytree(run, asked.keep / f"resume-{asked.seed}-{runs}")
            status = read(run / "status.json")
            counted = {launch for trial in status["trials"] for launch in trial["launches"]}
            where = " ".join(f"{t['world_size']}:{t['launches']}" for t in status["trials"])
            print(
                f"{runs:4} {len(ended):5}  {' '.join(ended):38} {len(status['launches']):8} "
                f"{len(status['launches']) - len(counted):9}  {where:16} {'; '.join(wrong) or 'complete, each once'}",
                flush=True,
            )
    took = f"{(time.monotonic() - begin) / 60:.0f} min"
    print(f"{kills} ends in {took}: {bad} of {runs} runs did not end complete with each trial once (bar: 0)")
    return int(bad > 0 or kills < asked.kills)


def survives(run: Path, moments: list[tuple[float, str]]) -> tuple[list[str], list[str]]:
    """End the run's driver at each moment after a start, resume it, and finally let it end: (ends, problems).

    A driver that finishes before its moment is not ended; its run is complete.
    """
    finished: dict[Path, int] = {}
    ended: list[str] = []
    wrong: list[str] = []
    for moment, how in moments:
        with driven(run) as driver:
            try:
                driver.wait(moment)
                break
            except subprocess.TimeoutExpired:
                driver.send_signal(HOW[how])
            ended.append(f"{moment:.1f}{how}")
            if not over(driver, STOP_S):
                wrong.append(f"{HOW[how].name} did not end it within {STOP_S} s")
        wrong += left_of(run) + touched(finished)
        finished |= whole(run)
    code = until_over(run)
    wrong += [] if code == 0 else [f"exit {code}"]
    return ended, wrong + left_of(run) + touched(finished)


@contextlib.contextmanager
def driven(run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that starts or resumes a run; it has ended when the context is left."""
    words = ["--resume", str(run)] if (run / "plan.json").exists() else [*OVERRIDES, f"run_dir={run}"]
    driver = subprocess.Popen(
        [*SCALING, "run", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield driver
    finally:
        end(driver)


def over(driver: subprocess.Popen[bytes], within_s: float) -> bool:
    """Whether the driver ends by itself in time; otherwise it is ended."""
    try:
        driver.wait(within_s)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()
        return False
    return True


def until_over(run: Path) -> int | None:
    """The exit status of a run that is not ended; None where it takes longer than WHOLE_S."""
    with driven(run) as driver:
        return driver.returncode if over(driver, WHOLE_S) else None


def whole(run: Path) -> dict[Path, int]:
    """Rank files of launches that finished something, with the time they were last written."""
    if not (run / "status.json").exists():
        return {}
    launches = read(run / "status.json")["launches"]
    done = [run / "launches" / str(x["index"]) for x in launches if x["finished"]]
    return {path: path.stat().st_mtime_ns for folder in done for path in folder.glob("rank-*.jsonl")}


def touched(finished: dict[Path, int]) -> list[str]:
    """Complete files that have been written again since."""
    return [
        f"{path.parent.name}/{path.name} was written again"
        for path, written in finished.items()
        if path.stat().st_mtime_ns != written
    ]


def left_of(run: Path, seconds: float = 20) -> list[str]:
    """Whether all that the driver started ends by itself."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(str(run) in line for line in command_lines()):
            return []
        time.sleep(0.1)
    return ["processes were left"]


def command_lines() -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid():
                lines.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines


def trials(run: Path) -> list[tuple[int, str, int, list[str]]]:
    """Contents of the analysis: world size, status, launches it was measured in, and the arms with a number."""
    analysis = read(run / "analysis.json")
    arms = {
        p["world_size"]: [k for k, v in p["arms_ms"].items() if v is not None] for p in analysis["points"]
    }
    return [
        (t["world_size"], t["status"], len(t["launches"]), arms.get(t["world_size"], []))
        for t in analysis["trials"]
    ]


def unlike(run: Path, wanted: list[tuple[int, str, int, list[str]]]) -> list[str]:
    """How a run differs from one that was not ended, and whether its analysis names the launches of its trials."""
    wrong = [f"{have} is not {want}" for have, want in zip(trials(run), wanted, strict=True) if have != want]
    status, analysis = read(run / "status.json"), read(run / "analysis.json")
    for trial, reported in zip(status["trials"], analysis["trials"], strict=True):
        if reported["launches"] != trial["launches"]:
            wrong.append(
                f"world size {trial['world_size']} is read from {reported['launches']}, measured in {trial['launches']}"
            )
    counted = {launch for trial in status["trials"] for launch in trial["launches"]}
    named = {int(k) for text in analysis["quality"]["warnings"] for k in cut_off(text)}
    measured = {launch["index"] for launch in status["launches"] if has_blocks(run, launch["index"])}
    if named != measured - counted:
        wrong.append(f"left out were {sorted(measured - counted)}, the report says {sorted(named)}")
    return wrong


def cut_off(warning: str) -> list[str]:
    """The launches that a warning says were left out."""
    match = re.match(r"launch ([\d, ]+) was cut off and is not counted", warning)
    return match.group(1).split(", ") if match else []


def has_blocks(run: Path, launch: int) -> bool:
    """Whether a launch left a whole block of some rank."""
    files = (run / "launches" / str(launch)).glob("rank-*.jsonl")
    lines = (line for path in files for line in path.read_bytes().split(b"\n")[:-1])
    return any(line.startswith(b'{"t":"block"') for line in lines)


def read(path: Path) -> Json:
    return dict(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    exit_with(main)
