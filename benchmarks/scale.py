"""Measure `scaling analyze` on rank files of many ranks: time, memory, and whether it finds known causes.

    python benchmarks/scale.py [--ranks 64 256 1024 4096 16384] [--keep DIR]

The files are those of a simulated cluster (tests/support/simulated_cluster.py): hosts of 8 ranks, 34 rounds of 10
steps an arm, so 1,020 steps of every rank carry 8 buckets each (ddp_solo, detailed probe, replay), beside 1,360 steps
without and the size sweep. The folder also has environments, memory and a telemetry of each host, second by second.
Known causes: a late rank, link, neighbours, DDP's copies, overlap. A fresh process on two cores analyses each size,
from its start to the written report. Without --ranks: 64, 256 and 1,024; 16,384 take 5.5 GB of files
(16 minutes of processor time to make).

Bars (exit 1 when missed): 20 s for 1,024 ranks; 1.5 GiB at every size, in all processes together; each file of a
launch opened at most once; time per row from 256 to 1,024 ranks at most 1.25 times that from 64 to 256; the late rank
and its phase named, each number within its own margin of the truth; report.html under 2 MB, and drawn by Chromium where
there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import harness  # noqa: E402
from ending import end, exit_with  # noqa: E402
from support import simulated_cluster as cluster  # noqa: E402
from support.simulated_machines import write_machines  # noqa: E402

from scaling.records.encoding import Sealer  # noqa: E402
from scaling.records.paths import RunFolder  # noqa: E402
from scaling.settings.plan import make_plan  # noqa: E402
from scaling.settings.schedule import round_blocks  # noqa: E402

SECONDS, GIB, GIB_BEYOND, LINEAR, REPORT_MB = 20.0, 1.5, 3.0, 1.25, 2.0
SECONDS_RANKS = 1024
"""Largest size that the bars on time and GIB are for; up to 4,096 ranks the memory has GIB_BEYOND."""
MS = 1e6
CORES = 2
PACKED = re.compile(rb'"n":(\d+),"s":\d+(?:,"c":(\d+))?')
"""How many steps a line holds, and the collectives of each."""

COUNTING = """
import atexit, collections, os, sys
opened = collections.Counter()
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)) and "/launches/" in os.fsdecode(arguments[0]):
        opened[os.fsdecode(arguments[0])] += 1
def tell():
    with open(os.path.join(os.path.dirname(__file__), f"{os.getpid()}.opened"), "w") as file:
        file.writelines(f"{count} {path}\\n" for path, count in opened.items())
sys.addaudithook(note)
atexit.register(tell)
"""
"""A sitecustomize.py: each Python process leaves how often it opened files of launches, as its audit hook sees it."""
OFTEN_S = 0.1
"""Between two looks at the memory."""


def truth_of(ranks: int) -> Any:
    """A cluster whose ranks differ only by the injected faults; noise is in blocks and the link, and there is drift."""
    return cluster.Truth(
        world_sizes=(ranks,),
        hosts=ranks // 8,
        ranks_per_host=8,
        buckets=tuple(cluster.Bucket(bytes=2**23, at=(k + 1) / 8) for k in range(8)),
        alpha_ns=500.0,
        beta_ns=0.1,
        channels=1,
        step_noise=0.0,
        stragglers=(cluster.Straggler(rank=ranks // 3, extra_ns=15 * MS, phase="input"),),
        rounds=34,
        steps=10,
    )


def complete(truth: Any, folder: RunFolder) -> None:
    """Write what the simulator leaves out: memory after each block, environments, memory by world size, telemetry."""
    plan = make_plan(
        cluster.spec_of(truth), run_id="simulated", created="2026-01-01T00:00:00+00:00", version="0"
    )
    blocks = [b for number in range(truth.rounds) for b in round_blocks(plan, plan.trials, 0, number)]
    text = {
        block.id: Sealer().seal(
            json.dumps({"t": "memory", "b": block.id, "host_bytes": 2**30, "device_bytes": 2**33}) + "\n"
        )
        for block in blocks
    }
    for rank in range(plan.ranks):
        with folder.launch(0).rank(rank).open("a", encoding="ascii") as file:
            file.write("".join(text[block.id] for block in blocks if block.runs_on(rank)))
    write_machines(folder, plan)


def made(truth: Any, folder: RunFolder) -> dict[int, Any]:
    """What is to be found in a folder, by world size; the folder is made unless it is there as a whole."""
    whole = folder.path / "made"
    if not whole.exists():
        shutil.rmtree(folder.path, ignore_errors=True)
        cluster.simulate(truth, folder.path)
        complete(truth, folder)
        whole.touch()
    plan = make_plan(
        cluster.spec_of(truth), run_id="simulated", created="2026-01-01T00:00:00+00:00", version="0"
    )
    return {trial.world_size: cluster.expect(truth, trial) for trial in plan.trials}


def rows_of(folder: RunFolder) -> tuple[int, int]:
    """(steps and rows of collectives, bytes) of all rank files."""
    rows = size = 0
    for path in folder.launch(0).path.glob("rank-*.jsonl"):
        content = path.read_bytes()
        size += len(content)
        for steps, calls in PACKED.findall(content):
            rows += int(steps) * (1 + int(calls or 0))
    return rows, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Time and memory of one analysis in a separate process, with those that it starts."""

    seconds: float
    cpu_s: float
    """CPU time of all their threads, which other programs on the machine affect least."""
    peak_gib: float
    """Of all of them together; what they share counts once."""
    files: int
    """Files of the launch that were opened."""
    opens: int
    """How often the one was that was opened most often."""


def analyze(folder: RunFolder) -> Took:
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as counted:
        Path(counted, "sitecustomize.py").write_text(COUNTING)
        process = subprocess.Popen(
            [sys.executable, "-m", "scaling.cli", "analyze", str(folder.path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([counted, str(ROOT)])},
            preexec_fn=_two_cores,  # noqa: PLW1509  # before any thread
        )
        peak = 0
        most = dict[tuple[int, ...], int]()
        try:
            while process.poll() is None:
                family = tuple(_family(process.pid))
                resident = sum(map(_resident_bytes, family))
                if resident > most.get(family, 0):
                    most[family], peak = resident, max(peak, sum(map(_held_bytes, family)))
                time.sleep(OFTEN_S)
        except KeyboardInterrupt:
            end(process)
            raise
        seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode:
            raise SystemExit(
                f"scaling analyze: status {process.returncode}\n{process.stderr and process.stderr.read()[-500:]}"
            )
        opened = Counter[str]()
        for path in Path(counted).glob("*.opened"):
            for line in path.read_text().splitlines():
                count, _, name = line.partition(" ")
                opened[name] += int(count)
    return Took(
        seconds=seconds,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_gib=peak / 2**30,
        files=len(opened),
        opens=max(opened.values(), default=0),
    )


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        text = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return [pid]
    return [pid, *(process for child in map(int, text.split()) for process in _family(child))]


def _resident_bytes(pid: int) -> int:
    """Memory of a process with all that it shares: quick to ask for, and the most where `_held_bytes` is the most."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # it has ended
        return 0


def _held_bytes(pid: int) -> int:
    """Memory of a process; pages that several have count as parts.

    The kernel goes through all pages for it: four times a second, three processes of 600 MB took a tenth of a core.
    """
    try:
        match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:  # it has ended
        return 0
    return int(match[1]) * 1024 if match else 0


def _two_cores() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def causes(
    document: dict[str, Any], truth: Any, expected: Any, ranks: int
) -> list[tuple[str, float, float, bool]]:
    """(name, found, truth, whether it was found); margins are those of the interval over 34 rounds."""
    point, level = document["points"][0], document["fabric"]["levels"][0]
    late = point["straggler"] or {"rank": -1, "phase": "", "cost_ms": {"value": 0.0}}
    step_ms = expected.step_ns["plain"] / MS
    compared = [
        ("late rank", late["rank"], ranks // 3, late["rank"] == ranks // 3 and late["phase"] == "input"),
        near("its cost, ms", late["cost_ms"], expected.cost_ns[ranks // 3] / MS, 0.05),
        near("step, ms", point["step_ms"], step_ms, 0.02),
        near("efficiency", point["efficiency"], expected.efficiency, 0.02),
        near("bus bandwidth, Gbit/s", point["comm"]["busbw_gbit_s"], expected.busbw_gbit_s, 0.03),
        near("alpha, us", level["alpha_us"], truth.alpha_ns / 1e3, 0.05),
        near("bandwidth of the link, Gbit/s", level["busbw_gbit_s"], 8 / truth.beta_ns, 0.05),
    ]
    shares = dict(expected.loss)
    if point["loss"].get("communication") is not None:  # nothing splits it: no GPU has confirmed the details
        shares["communication"] = shares.pop("link_latency") + shares.pop("link_bandwidth")
    for cause, share in shares.items():
        number = point["loss"][cause]
        if number is None and not share:  # small_batch is strong scaling's
            continue
        value = float("nan") if number is None else number["value"]
        compared.append((f"loss: {cause}", value, share, abs(value - share) <= 0.01))
    return compared


def near(
    name: str, number: dict[str, Any] | None, truth: float, margin: float
) -> tuple[str, float, float, bool]:
    value = float("nan") if number is None else number["value"]
    return name, value, truth, abs(value - truth) <= margin * abs(truth)


def drawn(page: Path) -> bool | None:
    """Whether Chromium draws the report's plots; None without it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([chromium, *flags, page.as_uri()], capture_output=True, text=True, check=False)
    return (
        re.search(r'<svg[^>]*class="main-svg"', done.stdout) is not None
    )  # the library's text is in the page too


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument(
        "--keep", type=Path, help="make the run folders here unless they are there, and leave them"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scaling-scale-") as scratch:
        return compare(options.ranks, options.keep or Path(scratch), keep=options.keep is not None)


def compare(sizes: list[int], where: Path, *, keep: bool) -> int:
    took: dict[int, Took] = {}
    rows: dict[int, int] = {}
    met: dict[str, bool] = {}
    print(
        f"{'ranks':>6}{'rows':>12}{'MB':>7}{'made in s':>11}{'s':>8}{'CPU s':>8}{'us a row':>10}"
        f"{'GiB':>7}{'report MB':>11}  drawn"
    )
    for ranks in sizes:
        folder, truth = RunFolder(where / str(ranks)), truth_of(ranks)
        begin = time.perf_counter()
        expected = made(truth, folder)
        made_s = time.perf_counter() - begin
        rows[ranks], size = rows_of(folder)
        took[ranks] = run = analyze(folder)
        report_mb, shown = folder.report_html.stat().st_size / 1e6, drawn(folder.report_html)
        shown_text = {None: "no Chromium", True: "yes", False: "NO"}[shown]
        print(
            f"{ranks:>6}{rows[ranks]:>12,}{size / 1e6:>7.0f}{made_s:>11.1f}{run.seconds:>8.1f}{run.cpu_s:>8.1f}"
            f"{run.seconds / rows[ranks] * 1e6:>10.2f}{run.peak_gib:>7.2f}{report_mb:>11.2f}  {shown_text}",
            flush=True,
        )
        compared = causes(json.loads(folder.analysis.read_text()), truth, expected[ranks], ranks)
        for name, value, put_in, right in compared:
            print(f"       {name:<32}{value:>12.5g}  put in {put_in:<12.5g}{'' if right else 'MISSED'}")
        met[f"causes at {ranks}"] = all(right for *_, right in compared)
        print(f"       {run.files} files of the launch opened, each at most {run.opens} times")
        met[f"opens at {ranks}"] = run.opens == 1
        met[f"memory at {ranks}"] = run.peak_gib <= (GIB if ranks <= SECONDS_RANKS else GIB_BEYOND)
        met[f"report at {ranks}"] = report_mb <= REPORT_MB and shown is not False
        if not keep:
            shutil.rmtree(folder.path)
    largest = max(sizes)
    met["time"] = all(run.seconds <= SECONDS for ranks, run in took.items() if ranks <= SECONDS_RANKS)
    result: dict[str, Any] = {"ranks": largest, "rows": rows[largest]}
    if len(sizes) > 2:
        low, middle, high = sorted(sizes)[-3:]
        later, earlier = (
            (took[b].seconds - took[a].seconds) / (rows[b] - rows[a])
            for a, b in ((middle, high), (low, middle))
        )
        result["linear"] = round(later / earlier, 3)
        met["linear"] = later / earlier <= LINEAR
        print(
            f"time per further row, {middle} to {high} over {low} to {middle} ranks: "
            f"{later / earlier:.2f}, bar {LINEAR}"
        )
    missed = [name for name, right in met.items() if not right]
    print(f"missed: {', '.join(missed)}" if missed else "every bar is met")
    result |= {"seconds": round(took[largest].seconds, 1), "peak_gib": round(took[largest].peak_gib, 2)}
    return harness.result("scale", ok=not missed, **result)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    exit_with(main)
