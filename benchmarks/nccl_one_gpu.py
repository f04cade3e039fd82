"""Two NCCL ranks of one GPU, with faults that are known: who is late, what it costs, and what the transfers take.

    python benchmarks/nccl_one_gpu.py [--limit-s 480]      # NCCL 2.30 or later preloaded (docs/one-gpu.md)
    python benchmarks/nccl_one_gpu.py --simulated          # the same program on the simulated accelerator

ResNet-50 with BatchNorm under DDP at CUDA_DEVICE_MAX_CONNECTIONS unset, 1 and 32, and GPT-2 under DDP and FSDP. Each
is trained clean, and with rank 1 late by 20 ms in its input (benchmarks/gpu_parts/shared_rank.py). A simulated host
waits for its device in each step, and in a part of its own it runs ahead, as that of a GPU does. Bars:

late        The Probe's run names rank 1 and the input, and the interval of its cost holds the paired plain steps'.
clean       It names nobody.
details     Stamps of single collectives move no rank's compute, as the report has it. Where they would, with one
            work queue, the report says that it goes without, and transfers are not compared.
transfer    Compared with the kernels of the same training, of the rank that waits least: a step's sum within 5 %, each
            bucket of DDP within 10 % or 10 us.

All of it takes at most --limit-s seconds. A part that no time is left for is not begun, and said. Exit 1 where a bar is
missed, 77 with the reason where this cannot run. The figures are of one GPU shared, or simulated.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from ending import exit_with, run
from gpu_parts.rows import Row
from harness import SCALING, last_line, parser, result, skipped

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RANKS, LATE_RANK, LATE_MS, PHASE = 2, 1, 20.0, "input"
LIMIT_S, PART_S, ANALYSIS_S = 480.0, 90.0, 60.0
"""Of the whole, of one training, and of the analyses, which run side by side at the end."""
SIMULATED_PART_S = 240.0
"""A simulated training takes the processors of a machine that may be busy; the whole has its limit still."""
COST_SHARE = 0.02
SUM_BAR, BUCKET_BAR, BUCKET_FLOOR_MS = 0.05, 0.10, 0.010
NCCL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "16"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training; `connections`: work queues of the device, None for its default.

    `ahead`: a simulated host runs ahead of its device, as that of a GPU always does.
    """

    model: str
    strategy: str
    connections: int | None = None
    ahead: bool = False

    @property
    def name(self) -> str:
        """For the table and the folder."""
        queues = "" if self.model != "resnet50" else f"-{self.connections or 'default'}"
        return f"{self.model}-{self.strategy}{queues}{'-ahead' if self.ahead else ''}"


CASES = (
    *(Case(model="resnet50", strategy="ddp", connections=queues) for queues in (None, 1, 32)),
    Case(model="gpt2", strategy="ddp"),
    Case(model="gpt2", strategy="fsdp"),
)
AHEAD = Case(model="resnet50", strategy="ddp", ahead=True)


def missing(*, simulated: bool) -> str | None:
    """The reason why this cannot run here; None if it can."""
    import torch

    if simulated:
        from scaling_simulator import build

        return build.missing()
    from scaling.worker.accelerator import cuda

    if not torch.cuda.is_available():
        return "no CUDA device here that torch sees; --simulated runs without one"
    loaded = cuda.nccl_version()
    return (
        None if loaded >= (2, 30) else f"NCCL {cuda.nccl_text()}: 2.30 or later is needed (docs/one-gpu.md)"
    )


def train(case: Case, folder: Path, limit_s: float, *, simulated: bool) -> str | None:
    """Run one training; None, or why there is none."""
    folder.mkdir(parents=True)
    words = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "--nnodes=1"]
    words += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    words += [str(HERE / "gpu_parts/shared_rank.py"), case.model, case.strategy, str(LATE_MS), str(folder)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if simulated:
        words += ["--simulated", str(case.connections or 8), *(["--ahead"] if case.ahead else [])]
    else:
        words, env = [str(ROOT / "launch/mps.sh"), *words], {**env, **NCCL}
        if case.connections is not None:
            env["CUDA_DEVICE_MAX_CONNECTIONS"] = str(case.connections)
    try:
        done = run(words, env=env, timeout_s=limit_s)
    except TimeoutExpired:
        return f"not done within {limit_s:.0f} s"
    (folder / "log.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return None if done.returncode == 0 else f"status {done.returncode}: {_error(done.stderr)}"


def _error(text: str) -> str:
    lines = [line for line in text.splitlines() if "Error" in line]
    return (lines[0] if lines else last_line(text))[:200]


def analysis_of(folder: Path) -> dict[str, Any] | None:
    """What `scaling analyze` says of a Probe's run."""
    try:
        done = run([*SCALING, "analyze", str(folder), "--json"], timeout_s=ANALYSIS_S)
    except TimeoutExpired:
        return None
    return dict(json.loads(done.stdout)) if done.returncode == 0 else None


def truth_ms(plain: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """What the late rank costs a plain step, and twice its standard error: from pairs of blocks."""
    apart = [late - clean for clean, late in zip(plain["clean"], plain["late"], strict=True)]
    return statistics.mean(apart), 2 * statistics.stdev(apart) / len(apart) ** 0.5


def late_row(name: str, straggler: Mapping[str, Any] | None, cost: tuple[float, float]) -> Row:
    """Rank, phase and cost of the late run against the paired plain steps."""
    truth, error = cost
    bar = f"rank {LATE_RANK}, {PHASE}, {truth:.1f} ms ±{error:.1f}"
    if straggler is None:
        return Row(section="late", what=name, measured="nobody", bar=bar, met=False)
    told = straggler["cost_ms"]
    slack = error + COST_SHARE * truth
    inside = told["low"] - slack <= truth <= told["high"] + slack
    right = (straggler["rank"], straggler["phase"]) == (LATE_RANK, PHASE)
    interval = f"{told['value']:.1f} ms [{told['low']:.1f}, {told['high']:.1f}]"
    measured = f"rank {straggler['rank']}, {straggler['phase']}, {interval}"
    return Row(
        section="late", what=name, measured=measured, bar=bar, met=right and inside, value=told["value"]
    )


def clean_row(name: str, straggler: Mapping[str, Any] | None) -> Row:
    """Nobody is late where nothing was injected."""
    measured = "nobody" if straggler is None else f"rank {straggler['rank']}, {straggler['phase']}"
    return Row(section="clean", what=name, measured=measured, bar="nobody", met=straggler is None)


def details_row(name: str, details: Mapping[str, Any] | None) -> Row:
    """Detailed blocks over light ones, as the report has it."""
    if details is None:
        return Row(section="details", what=name, measured="not in the report")
    over = details.get("over_light")
    if over is None and details["unused"]:
        return Row(section="details", what=name, measured=details["unused"].partition(":")[0])
    shown = (
        "unknown"
        if over is None
        else f"{over['value'] - 1:+.2%} [{over['low'] - 1:+.2%}, {over['high'] - 1:+.2%}]"
    )
    disturbs = bool(details["disturbs"])
    measured = f"{shown}, {'moves' if disturbs else 'moves no'} rank's compute"
    return Row(section="details", what=name, measured=measured, bar="moves none", met=not disturbs)


def kernels_ms(ranks: Sequence[Mapping[str, Any]]) -> list[float]:
    """What each collective of a step takes, in order: on the rank that waits least, median over the steps.

    Empty where ranks or steps do not have the same collectives.
    """
    rows = [[each["ms"] for each in rank["collectives"]] for rank in ranks]
    steps = ranks[0]["traced"]
    if len({len(row) for row in rows}) != 1 or not rows[0] or len(rows[0]) % steps:
        return []
    least = [min(pair) for pair in zip(*rows, strict=True)]
    each = len(least) // steps
    return [statistics.median(least[at::each]) for at in range(each)]


def transfer_rows(
    name: str, kernels: Sequence[float], transfers: Sequence[float], *, whole: float | None
) -> list[Row]:
    """Transfers beside kernels, ms. `whole`: of a step, where they are not told by bucket."""
    if not kernels:
        why = "ranks or steps differ in their collectives"
        return [Row(section="transfer", what=name, measured=why, bar="the device's own record", met=False)]
    total, device_ms = (sum(transfers) if whole is None else whole), sum(kernels)
    off = total / device_ms - 1
    rows = [
        Row(
            section="transfer",
            what=f"{name}, a step",
            measured=f"{total:.3f} ms, kernels {device_ms:.3f} ({off:+.1%})",
            bar=f"{SUM_BAR:.0%}",
            met=abs(off) <= SUM_BAR,
            value=off,
        )
    ]
    if whole is None:
        told = zip(kernels, transfers, strict=False)
        apart = [abs(ours - theirs) - max(BUCKET_BAR * theirs, BUCKET_FLOOR_MS) for theirs, ours in told]
        same = len(kernels) == len(transfers)
        each = " ".join(
            f"{ours * 1e3:.0f}/{theirs * 1e3:.0f}" for theirs, ours in zip(kernels, transfers, strict=False)
        )
        measured = each + " us" if same else f"{len(transfers)} buckets, {len(kernels)} kernels"
        met = same and max(apart) <= 0
        rows.append(
            Row(section="transfer", what=f"{name}, each", measured=measured, bar="10 % or 10 us", met=met)
        )
    return rows


def judged(case: Case, folder: Path, analyses: Mapping[str, dict[str, Any] | None]) -> list[Row]:
    """All rows of one training."""
    ranks = [json.loads((folder / f"rank-{r}.json").read_text(encoding="utf-8")) for r in range(RANKS)]
    clean, late = (analyses[name] for name in ("clean", "late"))
    if clean is None or late is None:
        return [Row(section="late", what=case.name, measured="scaling analyze failed", met=False)]
    points = {name: analysis["points"][-1] for name, analysis in (("clean", clean), ("late", late))}
    cost = truth_ms(ranks[0]["plain_ms"])
    rows = [
        late_row(case.name, points["late"]["straggler"], cost),
        clean_row(case.name, points["clean"]["straggler"]),
    ]
    rows += [
        details_row(f"{case.name}, {name}", analysis["quality"].get("details"))
        for name, analysis in (("clean", clean), ("late", late))
    ]
    comm = points["clean"]["comm"]
    if comm is None and (clean["quality"].get("details") or {}).get("unused"):
        return rows
    kernels = kernels_ms(ranks)
    if case.strategy == "ddp":
        buckets = [bucket["transfer_ms"] for bucket in comm["buckets"]]
        transfers = [each["value"] for each in buckets if each is not None]
        return rows + transfer_rows(case.name, kernels, transfers, whole=None)
    sent = [each["transfer_ms"] for each in comm["collectives"] if each.get("transfer_ms") is not None]
    return rows + transfer_rows(case.name, kernels, [], whole=sum(each["value"] for each in sent))


def table(rows: Sequence[Row]) -> str:
    """The rows as lines."""
    words = {True: "met", False: "MISSED", None: ""}
    lines = [(row.section, row.what, row.measured, row.bar, words[row.met]) for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(5)] if lines else []
    return "\n".join(
        "  ".join(cell.ljust(widths[at]) for at, cell in enumerate(line)).rstrip() for line in lines
    )


def main(clock: Callable[[], float] = time.monotonic) -> int:
    """Train, analyse, judge."""
    options = parser(__doc__)
    options.add_argument("--simulated", action="store_true", help="on the simulated accelerator")
    options.add_argument("--limit-s", type=float, default=LIMIT_S)
    options.add_argument("--only", action="append", help="a part's name; repeat it for several")
    options.add_argument("--keep", type=Path, help="a folder for the runs")
    asked = options.parse_args()
    why = missing(simulated=asked.simulated)
    if why is not None:
        return skipped("nccl_one_gpu", why)
    begin, rows, left_out, trained = clock(), list[Row](), list[str](), list[Case]()
    with tempfile.TemporaryDirectory(prefix="scaling-") as scratch:
        folder = asked.keep or Path(scratch)
        for case in (*CASES, *([AHEAD] if asked.simulated else [])):
            if asked.only and case.name not in asked.only:
                continue
            left_s = asked.limit_s - (clock() - begin) - ANALYSIS_S
            if left_s < PART_S / 3:
                left_out.append(case.name)
                continue
            part_s = min(SIMULATED_PART_S if asked.simulated else PART_S, left_s)
            failed = train(case, folder / case.name, part_s, simulated=asked.simulated)
            print(f"{case.name}: {failed or 'trained'}, {clock() - begin:.0f} s", flush=True)
            if failed:
                rows.append(Row(section="late", what=case.name, measured=failed, bar="trains", met=False))
            else:
                trained.append(case)
        runs = [(case, name) for case in trained for name in ("clean", "late")]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            analyses = dict(
                zip(
                    runs,
                    pool.map(lambda pair: analysis_of(folder / pair[0].name / pair[1]), runs),
                    strict=True,
                )
            )
        for case in trained:
            both = {name: analyses[case, name] for name in ("clean", "late")}
            rows += judged(case, folder / case.name, both)
    print(table(rows))
    if left_out:
        print(f"left out, since no time was left: {', '.join(left_out)}")
    missed = [row.what for row in rows if row.met is False]
    where = "simulated" if asked.simulated else "one GPU shared"
    told = {"where": where, "seconds": round(clock() - begin), "bars": len(rows), "missed": missed}
    return result("nccl_one_gpu", ok=bool(rows) and not missed, **told, left_out=left_out)


if __name__ == "__main__":
    exit_with(main)
