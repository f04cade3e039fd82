"""The harness on a simulated accelerator whose times are known: merging, late ranks, closure, the fabric's curve.

    python benchmarks/simulated_gpu.py [--seed S] [--runs N] [--only few_queues]

DDP runs on simulated devices (simulator/scaling_simulator: real torch, asynchronous streams, a back end with NCCL's
semantics, a virtual clock) in the harness's own arms, probe, blocks and recorder, and the records are analysed. Links
are drawn from the seed, piecewise with several bandwidths; so are layers, kernels and who is late. The ranks' clocks
are off by up to 50 ms and compared to within 8 us. What the analysis says is held against the simulation's own tasks:

- 2, 4 and 8 ranks, without a late rank, with one late on its host and one late on its stream: transfer of each bucket,
  exposed transfer and skew, bandwidth, the late rank's cost (against the same case without it) within 2 % or 20 us, the
  right rank, closure within 2 %; the size sweep against the link's own curve;
- two communicators that share a wire, seen by the harness's tap;
- SyncBatchNorm, which torch refuses on a CPU: its waits are skew or transfer, and the late rank is found;
- a rank late in its input where streams share 1 to 32 work queues: its name, phase and cost, and what details cost;
- a step that is bound by the host's launches, which has to be named, and is in no other case;
- ResNet-50 and GPT-2 on a device of known rates, with a host that keeps it busy and one that does not: named parts
  explain 90 % of the step or more, and kernels, the slow ones among them, and waits for the host are within 2 %;
- under noise of kernels and hosts, N runs: 90 % of the intervals hold the truth, and their median width is at most 5 %;
- beside it, what is made of the same records where collectives of one communicator are taken for concurrent ones, and
  what one message from an idle device takes beside one of many.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests"), str(ROOT / "simulator" / "tests")]

from ending import exit_with  # noqa: E402
from harness import parser, result, skipped  # noqa: E402
from simulated_parts import communicators, queues  # noqa: E402
from simulated_parts import kernels as timed  # noqa: E402
from simulated_parts import norms as synchronised  # noqa: E402
from simulated_parts.case import LAUNCH_BOUND, draw  # noqa: E402
from simulated_parts.run import MS, Figure, Ran, curve_figures, describe, figures, run  # noqa: E402

from scaling_simulator import build  # noqa: E402

SHARE, LEAST_MS = 0.02, 0.020
HELD, WIDTH = 0.9, 0.05
EXACT = 1e-6
DISTURBED = 0.01
NOISE = 0.03
MEASURED = ("exposed transfer", "exposed skew", "busbw")
"""Judged under noise beside the buckets' transfers."""


class Bars:
    """Counts what missed."""

    def __init__(self) -> None:
        self.looked = self.missed = 0
        self.worst = 0.0

    def figure(self, figure: Figure) -> None:
        """Print one figure and judge it."""
        ok = figure.right(SHARE, LEAST_MS)
        self.worst = max(self.worst, figure.beyond(LEAST_MS))
        self.check(ok, describe(figure))

    def check(self, ok: bool, statement: str) -> None:
        """Judge one statement."""
        self.looked += 1
        self.missed += not ok
        print(f"  {statement}{'' if ok else '   MISSED'}")


def exact(seed: int, bars: Bars) -> Ran:
    """Without noise: every figure is the simulation's."""
    first = None
    for ranks in (2, 4, 8):
        clean = run(draw(seed, ranks))
        first = first or clean
        for late in ("", "host", "stream"):
            ran = run(draw(seed, ranks, late)) if late else clean
            print(f"{ran.case.name}: found, known, off (ms; Gbit/s)")
            for figure in figures(ran):
                bars.figure(figure)
            closure, straggler = ran.point.closure, ran.point.straggler
            bars.check(closure is not None and abs(closure.value - 1) <= SHARE, f"closure {closure}")
            if late:
                cost = (ran.plain_ns - clean.plain_ns) / MS
                bars.figure(
                    Figure(name="cost of the late rank", found=straggler and straggler.cost_ms, known=cost)
                )
                named = straggler.rank if straggler else None
                bars.check(named == ran.case.late_rank, f"late rank {named}")
            else:
                bars.check(straggler is None, "no late rank")
            causes = [verdict.cause for verdict in ran.analysis.verdicts]
            bars.check("launch_bound" not in causes, f"verdicts: {', '.join(causes)}")
    assert first is not None
    print("the size sweep at 2 ranks beside the link (us)")
    for figure in curve_figures(first):
        bars.figure(figure)
    return first


def shared(seed: int, bars: Bars) -> None:
    """Two communicators that share a wire, with a rank late on its stream."""
    case = draw(seed, 4, "stream")
    merged, replay, by_rank = communicators.run(case)
    clean, before, _ = communicators.run(case.without_late)
    print("4 ranks, two communicators that share a wire: found, known, off (ms)")
    alone = np.array([[step.alone for step in rank_steps] for rank_steps in by_rank])[0].mean(axis=0) / MS
    for k, value in enumerate(merged.transfer.mean(axis=0) / MS):
        bars.figure(Figure.of(f"bucket {k} transfer", value, alone[k]))
    transfer = np.mean([[step.transfer_ns for step in rank_steps] for rank_steps in by_rank]) / MS
    wait = np.mean([[step.wait_ns for step in rank_steps] for rank_steps in by_rank]) / MS
    bars.figure(Figure.of("exposed transfer", merged.exposed_transfer.mean() / MS, transfer))
    bars.figure(Figure.of("exposed skew", merged.exposed_skew.mean() / MS, wait - transfer))
    saved = (replay.period() - replay.without([case.late_rank]).period()).mean() / MS
    bars.figure(Figure.of("cost of the late rank", saved, (replay.period() - before.period()).mean() / MS))
    bars.check(
        float(merged.shared.max()) > 0, f"shared for {merged.shared.sum(axis=1).mean() / MS:.1f} ms a step"
    )
    bars.check(float(clean.shared.max()) > 0, "so they are without the late rank")


def norms(seed: int, bars: Bars) -> None:
    """SyncBatchNorm, with a rank late on its stream: waits in forward and backward, and the late rank."""
    case = draw(seed, 4, "stream")
    late, clean = synchronised.run(case), synchronised.run(case.without_late)
    print(f"{case.name}, SyncBatchNorm, {late.count} collectives of norms a step: found, known, off (ms)")
    for rank in range(case.ranks):
        bars.figure(Figure.of(f"rank {rank} skew", late.skew[rank] / MS, late.known_skew[rank] / MS))
        bars.figure(
            Figure.of(f"rank {rank} transfer", late.transfer[rank] / MS, late.known_transfer[rank] / MS)
        )
    bars.check(late.latest() == case.late_rank, f"late rank {late.latest()}")
    cost = (late.period_ns - clean.period_ns) / MS
    bars.figure(Figure.of("cost of the late rank", late.cost_ns(case.late_rank) / MS, cost))


def launches(seed: int, bars: Bars) -> None:
    """Kernels that are shorter than their launches. The detailed probe makes none that the training has not."""
    ran = run(draw(seed, 2, **LAUNCH_BOUND))
    comm = ran.point.comm
    assert comm is not None
    print("2 ranks, launches of 150 us and kernels of 100 us")
    causes = [verdict.cause for verdict in ran.analysis.verdicts]
    bars.check("launch_bound" in causes, f"verdicts: {', '.join(causes)}; starved at {comm.starved_share}")
    over = ran.detailed_ns / ran.plain_ns
    bars.check(
        abs(over - 1) < EXACT, f"a detailed step takes {over:.6f} of a plain one; closure {ran.point.closure}"
    )


def kernels(bars: Bars) -> None:
    """Where the step of real models goes."""
    for model, batch, slow, slow_part in timed.MODELS:
        for launch_us in (timed.AHEAD_US, timed.BEHIND_US):
            seen = timed.explained(model, batch, slow, launch_us)
            print(f"{model}, launches of {launch_us:.0f} us: found, known, off (ms); {seen.line.said}")
            bars.check(seen.share >= timed.EXPLAINED, f"named parts explain {seen.share:.1%} of the step")
            for name, part, truth in seen.figures(slow_part):
                bars.check(
                    abs(part - truth) <= SHARE * seen.line.step_ms.value, f"{name} {part:.3f} {truth:.3f}"
                )


def few_queues(bars: Bars) -> list[str]:
    """A rank late in its input where streams share few work queues; beside it, ends stamped on streams that wait.

    Returns the cells in which that older way of stamping misses the same bars.
    """
    failed = []
    for strategy, ranks in queues.STRATEGIES.items():
        for connections in queues.CONNECTIONS:
            for old in (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    cell = queues.cell(Path(folder) / "run", strategy, connections, old=old)
                late, over = cell.point.straggler, cell.details_cost
                named = (late.rank, late.phase) == (ranks - 1, "input") if late else False
                right = named and late is not None and abs(late.cost_ms.value / queues.LATE_MS - 1) <= SHARE
                # Nothing hides what a loop reduces by hand, so its 4.4 ms of transfers are named behind.
                causes = [cause for cause in cell.causes if (strategy, cause) != ("by hand", "communication")]
                ok = right and causes == ["straggler"] and (over is None or over < DISTURBED)
                who = f"rank {late.rank}, {late.phase}, {late.cost_ms.value:.2f} ms" if late else "nobody"
                cost = "withheld" if over is None else f"move a rank's own time by {over:.4%}"
                text = f"{strategy}, {connections} queues: {who}, {', '.join(cell.causes)}; details {cost}"
                if not old:
                    bars.check(ok, text)
                elif not ok:
                    failed.append(f"{strategy} {connections}")
                    print(f"  before: {text}   fails")
                else:
                    print(f"  before: {text}")
    return failed


def noisy(seed: int, runs: int, bars: Bars) -> tuple[float, float]:
    """How often intervals hold the truth under noise, and their median width."""
    cases = [
        run(draw(seed, 2 if k % 2 else 4, ("", "stream")[k // 2 % 2], noise=NOISE, rounds=6, noise_seed=k))
        for k in range(runs)
    ]
    inside, widths = [], []
    for ran in cases:
        alike = [other for other in cases if other.case.name == ran.case.name]
        expected: dict[str, list[float]] = {}
        for other in alike:  # the truth is the mean of what the simulation knows of all runs of a kind
            for figure in figures(other):
                expected.setdefault(figure.name, []).append(figure.known)
        for figure in figures(ran):
            judged = Figure(name=figure.name, found=figure.found, known=float(np.mean(expected[figure.name])))
            if judged.known > LEAST_MS and judged.found is not None:
                inside.append(judged.holds or judged.right(0, LEAST_MS / 4))
                widths.append(judged.width)
    share, width = sum(inside) / len(inside), median(widths)
    bars.check(share >= HELD, f"{share:.0%} of {len(inside)} intervals of {runs} noisy runs hold the truth")
    bars.check(width <= WIDTH, f"their median width is {width:.1%} of it")
    return share, width


def before(ran: Ran) -> tuple[float, float]:
    """Print what else could be made of the same records; the largest errors."""
    print(f"{ran.case.name}, read as if collectives of a communicator ran at once: found, known, off (ms)")
    off = []
    for figure in figures(ran, ran.as_gloo()):
        print(f"  {describe(figure)}")
        off.append(abs(figure.error) / figure.known if figure.known else 0.0)
    single, many, link = ran.smallest_us()
    print(f"  a message of 1 KiB: alone {single:.0f} us, one of many {many:.0f} us, the link {link:.0f} us")
    return max(off), single / link - 1


def main() -> int:
    """Run it."""
    options = parser(__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--runs", type=int, default=12, help="noisy runs")
    options.add_argument("--only", choices=("few_queues",), help="this part alone")
    asked = options.parse_args()
    lacking = build.missing()
    if lacking is not None:
        return skipped("simulated_gpu", lacking)
    build.built()
    bars = Bars()
    if asked.only:
        before_fails = few_queues(bars)
        told = {"figures": bars.looked, "missed": bars.missed, "before_fails": before_fails}
        return result("simulated_gpu", ok=not bars.missed, part=asked.only, **told)
    first = exact(asked.seed, bars)
    shared(asked.seed, bars)
    norms(asked.seed, bars)
    launches(asked.seed, bars)
    kernels(bars)
    few_queues(bars)
    share, width = noisy(asked.seed, asked.runs, bars)
    as_concurrent, as_latency = before(first)
    print(f"{bars.looked} figures, {bars.missed} missed; the worst is {bars.worst:.2%} off beyond 20 us")
    return result(
        "simulated_gpu",
        ok=not bars.missed,
        seed=asked.seed,
        figures=bars.looked,
        missed=bars.missed,
        worst=round(bars.worst, 5),
        held=round(share, 3),
        width=round(width, 4),
        as_concurrent=round(as_concurrent, 3),
        as_latency=round(as_latency, 3),
    )


if __name__ == "__main__":
    exit_with(main)
