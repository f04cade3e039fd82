"""Compare the time that `scaling run` says at its start with the time that it takes. Bar: 1.25 times, in every run.

    python benchmarks/promises.py [--only NAME...] [--no-hangs] [--keep FOLDER]

A run has to end with status 0, within 1.25 times what it said, with an interval for its main figure, and without
calling anything hung. A run that is refused has to be refused before it starts (status 2), and is started again with
the budget that the refusal names; that run then has to keep its promise. Two runs have two busy processes beside them.

The second table has true hangs: a rank that is stopped, one that sleeps for ever, one that waits for ever in C code as
for a device, and a link that is cut. Each has to be called hung within the greater of 60 s and ten steps, and END_S.
Exit 1 if a check fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from ending import end, exit_with, run

from scaling.records import files
from scaling.settings.plan import Promise

ROOT = Path(__file__).parents[1]
BAR = 1.25
LIMIT_S = 1800
"""Time limit of one run."""
COMMON = ("topology=local", "topology.device=cpu", "topology.ranks_per_host=2", "tracking=disabled")
NAMED = re.compile(r"measure\.budget_s=(\d+) is enough")
HUNG_S, END_S = 60.0, 15.0
"""When a hang has to be noticed, and what its launch may take to end."""
START_S = 240
"""Time limit until a launch that is to hang is measuring, and until it is noticed."""
BUSY = "while True: pass"


@dataclass(frozen=True)
class Row:
    """One run."""

    name: str
    overrides: tuple[str, ...]
    beside: int = 0
    """Busy processes beside it."""


QUICK, STANDARD = "measure=quick", "measure=standard"
ROWS = (
    Row("rtdetr inference", ("model=rtdetr", "task=inference", QUICK)),
    Row("rtdetr training", ("model=rtdetr", "model.image=256", "batch_per_rank=2", QUICK)),
    Row("resnet50", ("model=resnet50", "batch_per_rank=2", QUICK)),
    Row("vit", ("model=vit", "batch_per_rank=2", QUICK, "measure.budget_s=60")),
    Row("gpt2", ("model=gpt2", "model.sequence=128", "batch_per_rank=2", QUICK, "measure.budget_s=60")),
    Row("mlp", ("model=mlp", QUICK)),
    Row("mlp standard", ("model=mlp", STANDARD, "measure.budget_s=120")),
    Row("highmem_cnn", ("model=highmem_cnn", QUICK, "measure.budget_s=30")),
    Row("synthetic", ("model=synthetic", STANDARD, "measure.budget_s=60")),
    Row("mlp batch=max", ("model=mlp", "batch=max", "memory_limit=1GiB", QUICK)),
    Row(
        "64 ranks",
        (
            "model=synthetic",
            "model.param_mb=2",
            "model.compute_ms=100",
            "topology.ranks_per_host=64",
            "world_sizes=[1,64]",
            QUICK,
        ),
    ),
    Row("highmem_cnn busy", ("model=highmem_cnn", QUICK), beside=2),
    Row("rtdetr inference busy", ("model=rtdetr", "task=inference", QUICK), beside=2),
)


@dataclass(frozen=True)
class Taken:
    """How one `scaling run` went."""

    code: int
    took_s: float
    said_s: float | None
    left_out: str
    problems: tuple[str, ...]
    enough: str | None
    """The budget that a refusal names."""

    @property
    def ratio(self) -> float | None:
        """What it took over what it said."""
        return self.took_s / self.said_s if self.said_s else None


def measured(row: Row, folder: Path, *more: str) -> Taken:
    """Run it, and check it against what it said."""
    begin = time.monotonic()
    with busy(row.beside):
        done = run(
            [*harness.SCALING, "run", *COMMON, *row.overrides, *more, f"run_dir={folder}"], timeout_s=LIMIT_S
        )
    took_s = time.monotonic() - begin
    named = NAMED.search(done.stderr)
    if done.returncode == 2 and named is not None:
        problems = ("refused, but a folder was made",) if folder.exists() else ()
        return Taken(2, took_s, None, "", problems, named[1])
    if done.returncode != 0:
        return Taken(
            done.returncode,
            took_s,
            None,
            "",
            (f"status {done.returncode}: {harness.last_line(done.stderr)}",),
            None,
        )
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    said_s = files.decode(Promise, plan["promise"]).seconds if plan["promise"] else None
    analysis = harness.read_analysis(folder)
    ratio = took_s / said_s if said_s else None
    problems = (
        *(("it said no time",) if ratio is None else ()),
        *((f"it took {ratio:.2f} times what it said",) if ratio is not None and ratio > BAR else ()),
        *(() if has_interval(analysis) else ("no interval",)),
        *(("called hung",) if "hung" in done.stderr else ()),
    )
    lines = [w for w in analysis["quality"]["warnings"] if "leaves out" in w]
    what = lines[-1].partition("leaves out ")[2].partition("; measure.budget_s")[0] if lines else "nothing"
    return Taken(0, took_s, said_s, what, problems, None)


def has_interval(analysis: dict[str, Any]) -> bool:
    """Whether the main figure has one: the efficiency or step of the largest world size, or some case's throughput."""
    cases = [case["samples_per_s"] for case in (*analysis["inference"], *analysis["training"])]
    points = [p for p in analysis["points"] if p["step_ms"] is not None]
    main = [points[-1]["efficiency"] or points[-1]["step_ms"]] if points else cases
    return any(figure is not None and figure["low"] is not None for figure in main)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that keep a core busy each, beside what runs inside."""
    beside = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def promises(rows: tuple[Row, ...], parent: Path) -> tuple[int, float]:
    """Print the first table. Returns the number of rows with a problem, and the largest ratio."""
    print("# run                     budget  said, s  took, s  ratio  left out, or what is wrong")
    bad, worst = 0, 0.0
    for index, row in enumerate(rows):
        taken = measured(row, parent / str(index))
        shown(row.name, "", taken)
        wrong = list(taken.problems)
        if taken.enough is not None:
            again = measured(row, parent / f"{index}-again", f"measure.budget_s={taken.enough}")
            shown("  with the budget named", taken.enough, again)
            wrong += again.problems
            if again.enough is not None:
                wrong.append("the budget that it named was refused")
            worst = max(worst, again.ratio or 0.0)
        worst = max(worst, taken.ratio or 0.0)
        bad += bool(wrong)
    return bad, worst


def shown(name: str, budget: str, taken: Taken) -> None:
    """Print one row."""
    forecast = "refused" if taken.enough else "-" if taken.said_s is None else f"{taken.said_s:.0f}"
    ratio = "-" if taken.ratio is None else f"{taken.ratio:.2f}"
    what = "; ".join(taken.problems) or (f"{taken.enough} s is enough" if taken.enough else taken.left_out)
    print(f"{name:25} {budget:>6}  {forecast:>7}  {taken.took_s:7.0f}  {ratio:>5}  {what}", flush=True)


# True hangs


def stopped(folder: Path) -> None:
    """SIGSTOP to rank 1."""
    os.kill(worker(folder, 1), signal.SIGSTOP)


def cut(folder: Path) -> None:
    """Take the second host's link down."""
    command = ["nsenter", "--target", str(worker(folder, 1)), "--net", "ip", "link", "set", "eth0", "down"]
    subprocess.run(command, check=True, capture_output=True)


def worker(folder: Path, rank: int) -> int:
    """The process of a rank."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"scaling.worker" not in words or str(folder).encode() not in words:
                continue
            variables = (path / "environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables:
                return int(path.name)
    raise SystemExit(f"{folder}: rank {rank} does not run")


FAULTY = ("model=custom", "model._target_=faulty.factory")
SYNTHETIC = ("model=synthetic", "model.compute_ms=20", "model.param_mb=1")
HANGS: dict[str, tuple[tuple[str, ...], Callable[[Path], None] | None]] = {
    "rank 1 is stopped": ((*COMMON, *SYNTHETIC), stopped),
    "rank 1 sleeps for ever": ((*COMMON, *FAULTY, "+model.args.faults=[sleep@forward@1@60]"), None),
    "rank 1 waits for ever in C": ((*COMMON, *FAULTY, "+model.args.faults=[spin@forward@1@60]"), None),
    "the link is cut": (("topology=emulated_pcie", "tracking=disabled", *SYNTHETIC), cut),
}
"""Each with its overrides, and with what breaks it from outside while it measures rounds."""


def hangs(parent: Path) -> int:
    """Print the second table. Returns the number of hangs that were not found in time."""
    shutil.copy(ROOT / "tests/faults/faulty.py", parent)
    print("# hang                      found after, s  bar, s  what it said")
    bad = 0
    for index, (name, (overrides, fault)) in enumerate(HANGS.items()):
        found_s, sentence = found(parent, parent / f"hang-{index}", overrides, fault)
        bad += found_s is None or found_s > HUNG_S + END_S
        after = "-" if found_s is None else f"{found_s:.0f}"
        print(f"{name:27} {after:>14}  {HUNG_S + END_S:6.0f}  {sentence}", flush=True)
    return bad


def found(
    parent: Path, folder: Path, overrides: tuple[str, ...], fault: Callable[[Path], None] | None
) -> tuple[float | None, str]:
    """How long after the last progress the launch ended as failed, and how the run says so."""
    words = [*overrides, "world_sizes=[2]", QUICK, "measure.budget_s=240", "measure.rounds_max=500"]
    log = parent / f"{folder.name}.txt"
    path = os.pathsep.join([str(parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as errors:
        driver = subprocess.Popen(
            [*harness.SCALING, "run", *words, f"run_dir={folder}"],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            progress = folder / "launches/0/progress.json"
            if not waited(lambda: "round" in text(progress), driver):
                return None, harness.last_line(text(log))
            if fault is not None:
                fault(folder)
                begin = time.time()
            else:
                waited(lambda: progress.exists() and time.time() - progress.stat().st_mtime > 5, driver)
                begin = progress.stat().st_mtime
            if not waited(lambda: "launch 0 " in text(log), driver):
                return None, "nothing was noticed"
            took_s = time.time() - begin
            return took_s, next(line for line in text(log).splitlines() if "launch 0 " in line)[:110]
        finally:
            driver.send_signal(signal.SIGINT)
            end(driver)


def waited(holds: Callable[[], bool], driver: subprocess.Popen[bytes]) -> bool:
    """Whether something holds within START_S, before the driver ends."""
    limit = time.monotonic() + START_S
    while time.monotonic() < limit:
        over = driver.poll() is not None
        if holds():
            return True
        if over:
            return False
        time.sleep(0.2)
    return False


def text(path: Path) -> str:
    """A file's text; empty where there is none."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="rows whose name holds one of these"
    )
    parser.add_argument("--no-hangs", action="store_true", help="leave the second table out")
    parser.add_argument("--keep", type=Path, help="the folder of the runs, which stays")
    asked = parser.parse_args()
    rows = tuple(row for row in ROWS if not asked.only or any(name in row.name for name in asked.only))
    with tempfile.TemporaryDirectory(prefix="scaling-promises-") as scratch:
        parent = (asked.keep or Path(scratch)).absolute()
        parent.mkdir(parents=True, exist_ok=True)
        bad, worst = promises(rows, parent)
        late = 0
        if not asked.no_hangs and harness.has_namespaces():
            late = hangs(parent)
    print(
        f"{len(rows) - bad} of {len(rows)} runs kept their promise (bar: all, within {BAR} times what they said)"
    )
    return harness.result(
        "promises",
        ok=not bad and not late,
        runs=len(rows),
        broken=bad,
        worst=round(worst, 3),
        hangs_late=late,
    )


if __name__ == "__main__":
    exit_with(main)
