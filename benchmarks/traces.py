"""Compare `scaling trace` with HolisticTraceAnalysis 0.5.0. Bars: 0.1 %, 20 times its speed, a quarter of its memory.

Needs the real traces (SCALING_SHARED_DATA, by default ../shared/data beside the checkout) and pip. HTA gets a separate
environment (--environment DIR keeps it). Both programs run in turns, in fresh processes on the same files,
from start to numbers (temporal breakdown, overlap, kernel breakdown; here the whole decomposition): on the traces
as they are, and on 8 ranks of 500,000 events made by repeating their events with times and correlation ids moved on.
trace_parts/hta_quantities.py makes HTA's quantities of the events that `scaling trace` reads, and those are compared.
Memory is the largest sampled sum over a program's processes (Pss). The bar for speed applies to the large set: on the
small one, most of the time is the interpreter's start and imports, which is printed beside it. Growth: time per event
at 500,000 events a rank over that at 125,000.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ending
import harness

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("SCALING_SHARED_DATA", ROOT.parent / "shared" / "data"))
TRACES = DATA / "traces" / "dlrm_v100x8_param"
PINNED = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
RANKS, EVENTS, QUARTER = 8, 500_000, 125_000
SPEED, MEMORY, EQUAL, LINEAR = 20.0, 0.25, 1e-3, 1.25
"""Bars: times as fast; share of the memory; relative difference; time per event at 4 times the events."""
WATCHING = 0.02
"""Share of the time spent on sampling memory: a process waits while the kernel counts its pages."""
SHIFTED = re.compile(rb'("ts": |"correlation": |"External id": |"id": )(\d+)')

REFERENCE = """
import json, logging, sys, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
times = analysis.get_temporal_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)
types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
print(json.dumps({
    "times": times.to_dict("records"),
    "overlap": {str(r["rank"]): r["comp_comm_overlap_pctg"] for r in overlap.to_dict("records")},
    "types": {r["kernel_type"]: r["sum"] for r in types.to_dict("records")},
    "kernels": [[int(r["rank"]), r["kernel_type"], float(r["sum (us)"])] for r in kernels.to_dict("records")],
}))
"""


def environment(folder: Path) -> Path:
    """The interpreter of an environment with HTA, which is created if needed."""
    python = folder / "bin" / "python"
    if not python.exists():
        ending.run([sys.executable, "-m", "venv", str(folder)], check=True)
    probe = [str(python), "-c", "import hta"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        ending.run([str(python), "-m", "pip", "install", "--quiet", *PINNED], check=True)
    return python


def repeat(source: Path, target: Path, events: int) -> int:
    """Write the events of `source` repeatedly, shifted in time; returns how many.

    The copies form four profiler steps: with one step a copy HTA's time would grow with their number.
    """
    text = gzip.decompress(source.read_bytes())
    opening = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    closing = text.rindex(b"]")
    body = text[opening:closing].rstrip()
    times = [int(t) for t in re.findall(rb'"ts": (\d+)', body)]
    span = int((max(times) - min(times)) * 1.2)
    ids = max(int(i) for i in re.findall(rb'"correlation": (\d+)', body)) + 1
    pieces, values, at = [], [], 0
    for match in SHIFTED.finditer(body):
        pieces.append(body[at : match.start(2)].replace(b"%", b"%%") + b"%d")
        values.append((int(match[2]), span if match[1] == b'"ts": ' else ids))
        at = match.end()
    template = b"".join(pieces) + body[at:].replace(b"%", b"%%")
    each = body.count(b'"ph"')
    copies = -(-events // each)
    quarter = max(1, copies // 4)
    with gzip.open(target, "wb", compresslevel=1) as file:
        file.write(text[:opening])
        for k in range(copies):
            piece = template % tuple(value + k * by for value, by in values)
            if k % quarter:
                piece = piece.replace(b"ProfilerStep#", b"step ")
            else:
                piece = re.sub(rb"ProfilerStep#\d+", b"ProfilerStep#%d" % (10 + k // quarter), piece)
                length = b"%d" % (span * quarter - 100)
                piece = re.sub(rb'("ProfilerStep#[^}]*?"dur": )\d+', lambda m, d=length: m[1] + d, piece)  # type: ignore[misc]
            file.write((b"," if k else b"") + piece)
        file.write(b"\n" + text[closing:])
    return copies * each


def pss_kib(pid: int) -> int:
    """Memory of a process and its children; shared pages count by share."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return total + sum(pss_kib(int(child)) for child in children)


def run(command: list[str]) -> tuple[float, float, Any]:
    """(seconds, peak MiB over all its processes, the JSON that it printed)."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            asked = time.perf_counter()
            peak[0] = max(peak[0], pss_kib(process.pid))
            over.wait(max(0.005, (time.perf_counter() - asked) / WATCHING))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        output = process.communicate(timeout=900)[0]
        seconds = time.perf_counter() - begin
    finally:
        over.set()
        watcher.join()
        if process.poll() is None:
            process.kill()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:3])} ended with {process.returncode}")
    return seconds, peak[0] / 1024, json.loads(output)


def difference(theirs: Any, ours: Any, hta: Any) -> float:
    """The largest relative difference of any quantity; for percentages less the rounding to 0.01 of HTA.

    `hta`: what hta_quantities.py prints.
    """
    worst = 0.0

    def compare(a: float, b: float, rounding: float = 0.0) -> None:
        nonlocal worst
        worst = max(worst, max(abs(a - b) - rounding, 0.0) / max(abs(a), abs(b), 1e-9))

    ranks = {r["rank"]: r for r in hta["ranks"]}
    assert sorted(ranks) == sorted(int(r["rank"]) for r in theirs["times"])
    for row in theirs["times"]:
        mine = ranks[int(row["rank"])]
        for key in ("idle", "compute", "non_compute", "kernel"):
            compare(row[f"{key}_time(us)"], mine[f"{key}_us"])
        compare(theirs["overlap"][str(row["rank"])], mine["overlap_percent"], 0.005)
    types = {t["kernel_type"]: t["sum_us"] for t in hta["kernel_types"]}
    assert types.keys() == theirs["types"].keys()
    for name, total in theirs["types"].items():
        compare(total, types[name])
    kernels: dict[tuple[int, str], list[float]] = {}
    for rank, kind, total in theirs["kernels"]:
        kernels.setdefault((rank, kind), []).append(total)
    for (rank, kind), sums in kernels.items():
        mine = [k["sum_us"] for k in hta["kernels"] if (k["rank"], k["kernel_type"]) == (rank, kind)]
        assert len(mine) == len(sums), (rank, kind)
        for a, b in zip(sorted(sums), sorted(mine), strict=True):
            compare(a, b)
    # This program's decomposition with its own windows must agree where the definitions do.
    for mine in ours["trace"][0]["ranks"]:
        if mine["steps"] == 1:
            row = ranks[mine["rank"]]
            idle = sum(mine[f"{k}_ms"]["value"] for k in ("input", "host", "launch", "idle"))
            compare(row["idle_us"], idle * 1e3)
            compare(row["compute_us"], mine["compute_ms"]["value"] * 1e3)
            compare(row["kernel_us"], mine["step_ms"]["value"] * 1e3)
    return worst


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment", type=Path, help="keep HTA's environment here")
    parser.add_argument("--events", type=int, default=EVENTS)
    asked = parser.parse_args()
    if not TRACES.is_dir():
        return harness.skipped("traces", f"no traces at {TRACES}")
    with tempfile.TemporaryDirectory(prefix="scaling-traces-") as scratch:
        here = Path(scratch)
        try:
            reference = [str(environment(asked.environment or here / "hta")), "-c", REFERENCE]
        except (OSError, subprocess.CalledProcessError) as error:
            return harness.skipped("traces", f"HTA cannot be installed: {error}")
        return compare_all(reference, here, asked.events)


def compare_all(reference: list[str], here: Path, events: int) -> int:
    ours_command = [*harness.SCALING, "trace", "--json"]
    for name, size in (("quarter", events // 4), ("large", events)):
        (here / name).mkdir()
        for rank in range(RANKS):
            repeat(TRACES / f"rank-{rank}.json.gz", here / name / f"rank-{rank}.json.gz", size)
    result: dict[str, Any] = {}
    bare = min(run([sys.executable, "-c", "import numpy, msgspec; print(0)"])[0] for _ in range(3))
    heads = ("events", "HTA s", "own s", "speed", "HTA MiB", "own MiB", "share", "differs")
    print(f"{'set':<8}" + "".join(f"{head:>9}" for head in heads))
    ok = True
    for name, folder, repeats in (("small", TRACES, 5), ("large", here / "large", 2)):
        pairs = [(run([*ours_command, str(folder)]), run([*reference, str(folder)])) for _ in range(repeats)]
        ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        (hta_s, hta_mib), (own_s, own_mib) = (
            (min(r[0] for r in rows), max(r[1] for r in rows)) for rows in (theirs, ours)
        )
        quantities = run(
            [sys.executable, str(ROOT / "benchmarks" / "trace_parts" / "hta_quantities.py"), str(folder)]
        )[2]
        worst = difference(theirs[-1][2], ours[-1][2], quantities)
        count = sum(r["events"] for r in ours[-1][2]["trace"][0]["ranks"])
        speed, share = hta_s / own_s, own_mib / hta_mib
        memory = f"{hta_mib:>9.0f}{own_mib:>9.0f}{share:>9.2f}"
        print(f"{name:<8}{count:>9}{hta_s:>9.2f}{own_s:>9.2f}{speed:>9.1f}{memory}{worst:>9.1e}")
        result[name] = {
            "speed": round(speed, 1),
            "memory_share": round(share, 3),
            "largest_difference": worst,
        }
        ok &= worst <= EQUAL and share <= MEMORY
        if name == "large":
            ok &= speed >= SPEED
            fewer = min(run([*ours_command, str(here / "quarter")])[0] for _ in range(3))
            growth = ((own_s - bare) / 4) / (fewer - bare)
            print(
                f"growth   time per event at {events} a rank over that at {events // 4}: {growth:.2f}, bar {LINEAR}"
            )
            result["growth"] = round(growth, 2)
            ok &= growth <= LINEAR
        else:
            print(
                f"         of which the interpreter, numpy and msgspec: {bare:.2f} s; no bar for speed here"
            )
    bars = {"speed": SPEED, "memory_share": MEMORY, "difference": EQUAL}
    return harness.result("traces", ok=ok, **result, bars=bars)


if __name__ == "__main__":
    ending.exit_with(main)
