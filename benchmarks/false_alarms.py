"""How often a cause is named that is not there, and how many rounds a true one takes to be named.

    python benchmarks/false_alarms.py [--seed N] [--draws N] [--runs N]

Draws what ranks record of a step in which nothing is lost but to noise, hands it to the code that names causes, and
counts the causes that it names. The noise is that between blocks: 1, 3, 10 and 30 % (standard deviation of the
logarithm), and a third of it again for each rank by itself. Blocks are independent (`steady`), or walk at random from
one to the next in the order in which they ran (`drift`), or something slows single ones by five times the noise: in
every second round those of an arm that is drawn anew (`bursts`), in every fourth round those of one arm (`one arm`).
3, 4, 6 and 12 rounds, 2 ranks; the harness's rounds of all arms, and an own loop's. Eight ranks whose steps vary by
15 %, each by itself, as batches of uneven length make them, are late by turns: no one of them is a straggler.

- Bars: over all cells together the upper 95 % limit (Clopper and Pearson) of the rate of runs with a false cause is at
  most 1 % at high confidence and 5 % at medium or high; no cell lies significantly above that (Holm over the cells).
- Power: a true cause of 5, 10 and 20 % of the step at 3 % of noise, of five kinds: how many rounds until 90 % of the
  runs name it at medium or high. Bar: 20 % within six rounds.
- Whole runs of a simulated cluster, from rank files on, have to agree with what the draws say.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

from ending import exit_with  # noqa: E402
from harness import parser, result  # noqa: E402
from support.simulated_cluster import Bucket, Straggler, Truth, simulate, spec_of  # noqa: E402
from support.tables import checked  # noqa: E402

from scaling.analysis.about import Ending  # noqa: E402
from scaling.analysis.analyze import analyze  # noqa: E402
from scaling.analysis.decompose.detailed import BlockStamps, read_detailed  # noqa: E402
from scaling.analysis.decompose.point import point  # noqa: E402
from scaling.analysis.decompose.quantities import COLUMNS, Sent, TrialRecords  # noqa: E402
from scaling.analysis.decompose.stragglers import Light  # noqa: E402
from scaling.analysis.decompose.trials import RunRecords  # noqa: E402
from scaling.analysis.network.channel import ONE  # noqa: E402
from scaling.analysis.results import TrialStatus, Verdict  # noqa: E402
from scaling.analysis.results.verdicts import NO_CAUSE  # noqa: E402
from scaling.analysis.verdicts.verdict import verdicts  # noqa: E402
from scaling.records.files import read_json  # noqa: E402
from scaling.records.paths import RunFolder  # noqa: E402
from scaling.settings import plan as plans  # noqa: E402
from scaling.settings.plan import OWN_LOOP, Plan, make_plan  # noqa: E402

NOISES, ROUNDS, MODES, LOOPS = (
    (0.01, 0.03, 0.1, 0.3),
    (3, 4, 6, 12),
    ("steady", "drift", "bursts", "one arm"),
    (True, False),
)
STEPS, STEP_NS = 4, 50e6
BY_TURNS = ((0.01, 0.03), ("steady", "drift"), 8, 0.15)
"""Noises and modes of the runs whose ranks are late by turns; ranks; how much each rank's steps vary."""
HIGH_MOST, NAMED_MOST = 0.01, 0.05
POWER, POWER_ROUNDS, POWER_NOISE = (0.05, 0.1, 0.2), (3, 4, 5, 6, 8, 10, 12, 16, 24), 0.03
ENOUGH, WITHIN = 0.9, 6
CAUSES = {
    "neighbours": ("neighbours",),
    "strategy_overhead": ("strategy_overhead",),
    "overlap": ("overlap",),
    "straggler": ("straggler",),
    "link": ("link_bandwidth", "link_latency", "communication"),
}
"""The true causes, and the names that are right for each."""
PHASES = {"input": 0.02, "forward": 0.32, "compute": 0.58, "optimizer": 0.05, "host": 0.03}
"""Shares of a step that is alone."""
ARMS = (("bare_one", False), ("bare_all", False), ("ddp_solo", True), ("plain", False), ("plain", False))
ARMS = (*ARMS, ("probe", False), ("probe", True))
LOOP = (("plain", False), ("probe", False), ("probe", True))


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of run."""

    noise: float
    mode: str
    rounds: int
    harness: bool
    cause: str = ""
    """Of CAUSES; empty: none."""
    share: float = 0.0
    """Of the plain step that the true cause takes."""
    ranks: int = 2
    uneven: float = 0.01
    """By how much each rank's steps vary by themselves (standard deviation of the logarithm)."""

    def __str__(self) -> str:
        name = f"{'run' if self.harness else 'own loop':<8} {self.noise:>4.0%} {self.mode:<7} {self.rounds:>2} rounds"
        return name if self.ranks == 2 else f"{name}, {self.ranks} ranks by turns"


def factors(rng: np.random.Generator, cell: Cell, blocks: int) -> np.ndarray:
    """By how much each block is slower, in the order in which they run."""
    noise = cell.noise * rng.standard_normal(blocks)
    if cell.mode == "drift":
        each_round = blocks / cell.rounds
        noise = noise / 3 + np.cumsum(cell.noise / each_round**0.5 * rng.standard_normal(blocks))
    return np.exp(noise)


def slower(cell: Cell, arm: str) -> np.ndarray:
    """What the true cause makes of each rank's own time in an arm; 1 without one."""
    more = 1 / (1 - cell.share)
    with_ddp = arm in ("plain", "probe")
    times = np.ones(cell.ranks)
    if (
        (cell.cause == "neighbours" and arm != "bare_one")
        or (cell.cause == "strategy_overhead" and (with_ddp or arm == "ddp_solo"))
        or (cell.cause == "overlap" and with_ddp)
    ):
        times *= more
    if cell.cause == "straggler" and arm != "bare_one":
        times[1] = more
    return times


def draw(rng: np.random.Generator, cell: Cell, plan: Plan) -> TrialRecords:
    """The records of one run."""
    rows: list[dict[str, object]] = []
    light: dict[str, dict[tuple[int, int], object]] = {"own_ns": {}, "waited": {}, "alike": {}}
    detailed: list[tuple[tuple[int, int], BlockStamps]] = []
    arms = ARMS if cell.harness else LOOP
    visits = []
    for number in range(cell.rounds):
        each = [(arm, is_detailed, ranks) for arm, is_detailed in arms for ranks in turns(arm, cell.ranks)]
        visits += [
            (number, *each[k]) for k in (rng.permutation(len(each)) if cell.harness else range(len(each)))
        ]
    pace = factors(rng, cell, len(visits))
    if cell.mode in ("bursts", "one arm"):
        pace = np.exp(np.log(pace) / 3)
        drawn = rng.integers(len(arms), size=cell.rounds)
        drawn, often = (drawn, 0.5) if cell.mode == "bursts" else (np.full(cell.rounds, drawn[0]), 0.25)
        hit = [arms[k] if rng.random() < often else None for k in drawn]
        pace[[visit[1:3] == hit[visit[0]] for visit in visits]] *= 1 + 5 * cell.noise
    link_ns = cell.share * STEP_NS / (1 - cell.share) if cell.cause == "link" else 0.002 * STEP_NS
    halves: Counter[tuple[int, str, bool]] = Counter()
    for (number, arm, is_detailed, ranks), factor in zip(visits, pace, strict=True):
        by_rank = np.exp(cell.noise / 3 * rng.standard_normal(cell.ranks)) * slower(cell, arm)
        uneven = np.exp(cell.uneven * rng.standard_normal((STEPS, cell.ranks)))
        alone = STEP_NS * factor * by_rank * uneven  # S x R
        together = arm in ("plain", "probe")
        data = link_ns * factor if together else 0.0
        wait = alone.max(axis=1, keepdims=True) - alone + data if together else np.zeros_like(alone)
        key = (0, number)
        for rank in ranks:
            parts = {name: share * alone[:, rank].mean() for name, share in PHASES.items()}
            exposed = float(wait[:, rank].mean())
            row = {"step": sum(parts.values()) + exposed, **parts, "exposed": exposed, "earlier_wait": 0.0}
            half = halves[(number, arm, is_detailed)]
            rows.append(
                {
                    "launch": 0,
                    "round": number,
                    "arm": arm,
                    "detailed": is_detailed,
                    "rank": rank,
                    "half": half,
                }
                | row
            )
        halves[(number, arm, is_detailed)] += arm == "plain"
        if arm == "probe" and not is_detailed:
            light["own_ns"][key], light["waited"][key] = alone, wait.mean(axis=0)
            light["alike"][key] = float(wait.min(axis=1).mean())
        if arm == "probe" and is_detailed:
            detailed.append((key, stamps(alone, wait, data)))
    cycles, merged, sizes = read_detailed(iter(detailed))
    sent = tuple(
        Sent(kind="all_reduce", phase="backward", unit=k, bytes=size, ranks=cell.ranks, axis="replicate")
        for k, size in enumerate(sizes)
    )
    index = pl.DataFrame({"launch": [0] * cell.rounds, "round": list(range(cell.rounds))})
    return TrialRecords(
        trial=plan.trials[0],
        index=index,
        ranks=pl.DataFrame(rows).select("launch", "round", "arm", "detailed", "rank", "half", *COLUMNS),
        cycles=cycles,
        merged=merged,
        bucket_bytes=sizes,
        sent=sent,
        light=Light(**light),  # type: ignore[arg-type]
    )


def turns(arm: str, ranks: int) -> Iterator[tuple[int, ...]]:
    """The ranks of each block of an arm: one at a time where they run alone."""
    yield from (((rank,) for rank in range(ranks)) if arm == "bare_one" else (tuple(range(ranks)),))


def stamps(alone: np.ndarray, wait: np.ndarray, data: float) -> BlockStamps:
    """A detailed block of one bucket, which is ready when backward ends."""
    shares = {name: share * alone for name, share in PHASES.items()}
    step = alone + wait
    begin = np.cumsum(np.vstack([np.zeros((1, step.shape[1])), step[:-1]]), axis=0) + 1e12
    compute_end = begin + shares["input"] + shares["forward"] + shares["compute"]
    launch = compute_end[:, :, None]
    done = np.broadcast_to(launch.max(axis=1, keepdims=True) + data, launch.shape)
    zero, none = np.zeros_like(alone), np.zeros((*alone.shape, 0))
    return BlockStamps(
        begin=begin,
        end=begin + step,
        input=shares["input"],
        backward=shares["compute"] + wait,
        optimizer=shares["optimizer"],
        compute_end=compute_end,
        sync_end=compute_end + wait,
        ready=launch,
        launch=launch,
        done=done,
        bytes=np.array([2.0**22]),
        earlier_wait=zero,
        buffer_wait=zero,
        buffer_begin=none,
        buffer_end=none,
        channel=ONE,
    )


def plan_of(cell: Cell) -> Plan:
    """The plan of such a run."""
    truth = Truth(world_sizes=(cell.ranks,), hosts=cell.ranks, rounds=cell.rounds)
    plan = make_plan(spec_of(truth), run_id="drawn", created="2026-01-01T00:00:00+00:00", version="0")
    return plan if cell.harness else replace(plan, source=OWN_LOOP)


def named(given: tuple[Verdict, ...], right: tuple[str, ...] = ()) -> dict[str, str]:
    """The confidence of each cause that is named, but for those that are right; a hint names none."""
    causes = {v.cause: v.confidence for v in given if v.cause not in (*NO_CAUSE, *right)}
    return {cause: confidence for cause, confidence in causes.items() if confidence != "low"}


def runs(cell: Cell, seed: int, draws: int) -> tuple[Cell, list[tuple[Verdict, ...]]]:
    """The verdicts of each draw of a cell."""
    rng, plan, drawn = np.random.default_rng(seed), plan_of(cell), []
    for number in range(draws):
        seeded = replace(plan, spec=replace(plan.spec, seed=seed * 1000 + number))
        records = draw(rng, cell, seeded)
        at = point(
            records,
            seeded,
            status="done",
            warmup_steps=0,
            base=None,
            sweep={},
            link=None,
        )
        drawn.append(verdicts(at, seeded))
    return cell, drawn


def cluster(cell: Cell, seed: int) -> tuple[Verdict, ...]:
    """The verdicts of a whole simulated run without a loss, read from rank files."""
    quiet = {
        "input_ns": 1e6,
        "neighbours": 1.0,
        "overlap": 1.0,
        "ddp_ns": 0.0,
        "alpha_ns": 1e3,
        "beta_ns": 0.002,
    }
    truth = Truth(
        world_sizes=(cell.ranks,),
        hosts=cell.ranks,
        block_noise=cell.noise,
        step_noise=0.005,
        link_noise=cell.noise,
        drift=cell.noise if cell.mode == "drift" else 0.0,
        probe_light_ns=0.0,
        probe_detailed_ns=0.0,
        skew_ns=2e3,
        buckets=(Bucket(bytes=2**20, at=0.5), Bucket(bytes=2**20, at=1.0)),
        rounds=cell.rounds,
        steps=4,
        lead_in=1,
        fabric_repeats=2,
        seed=seed,
        stragglers=(Straggler(rank=1, extra_ns=0.0),),
        **quiet,
    )
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        simulate(truth, folder.path)
        plan = read_json(folder.plan, Plan, plans.SCHEMA)
        trials = tuple(TrialStatus(world_size=t.world_size, status="done") for t in plan.trials)
        analysis = analyze(
            RunRecords(checked(folder, plan), plan), Ending(duration_s=60.0, launches=1, trials=trials)
        )
    return analysis.verdicts


def upper(hits: int, draws: int) -> float:
    """Upper end of the two-sided 95 % interval of a rate (Clopper and Pearson)."""
    from scipy.stats import beta

    return 1.0 if hits == draws else float(beta.ppf(0.975, hits + 1, draws - hits))


def surely_above(hits: Mapping[Cell, int], draws: Mapping[Cell, int], most: float) -> list[Cell]:
    """Cells whose rate is significantly above `most`: Holm's steps over all cells, 5 % in all."""
    from scipy.stats import binom

    chance = sorted((float(binom.sf(hits[cell] - 1, draws[cell], most)), str(cell), cell) for cell in hits)
    above = []
    for k, (p, _, cell) in enumerate(chance):
        if p > 0.05 / (len(chance) - k):
            break
        above.append(cell)
    return above


def table(counts: Mapping[Cell, list[tuple[Verdict, ...]]]) -> tuple[bool, dict[str, object]]:
    """Print the rates of false causes by cell and in all; whether the bars are met, and the figures."""
    high, some, draws = Counter[Cell](), Counter[Cell](), {cell: len(drawn) for cell, drawn in counts.items()}
    causes: dict[str, Counter[str]] = {"high": Counter(), "medium": Counter()}
    for cell, each in counts.items():
        high[cell] = some[cell] = 0
        for given in each:
            false = named(given)
            high[cell] += "high" in false.values()
            some[cell] += bool(false)
            for cause, confidence in false.items():
                causes[confidence][cause] += 1
    print(f"{'':<32} runs  high  medium or high")
    for cell in counts:
        if high[cell] or some[cell]:
            print(
                f"{cell!s:<32} {draws[cell]:>4} {high[cell] / draws[cell]:>5.1%} {some[cell] / draws[cell]:>6.1%}"
            )
    figures: dict[str, object] = {}
    ok = True
    for name, hits, most in (("high", high, HIGH_MOST), ("medium_or_high", some, NAMED_MOST)):
        count, whole = sum(hits.values()), sum(draws.values())
        limit, above = upper(count, whole), surely_above(hits, draws, most)
        print(
            f"{name.replace('_', ' ')}: {count} of {whole} runs, {count / whole:.2%}, upper limit {limit:.2%} (bar "
            f"{most:.0%}); cells significantly above {most:.0%}: {', '.join(map(str, above)) or 'none'}"
        )
        ok = ok and limit <= most and not above
        figures |= {name: count / whole, f"{name}_upper": limit, f"{name}_cells_above": len(above)}
    for confidence, names in causes.items():
        print(f"false at {confidence}: {', '.join(f'{n} {c}' for n, c in names.most_common()) or 'none'}")
    return ok, figures


def power(counts: Mapping[Cell, list[tuple[Verdict, ...]]]) -> tuple[bool, dict[str, object]]:
    """Print in how many runs the true cause is named, by share and rounds; whether the bar is met."""
    rate: dict[tuple[str, float, int], float] = {}
    for cell, each in counts.items():
        right = CAUSES[cell.cause]
        hits = sum(any(v.cause in right and v.confidence != "low" for v in verdict) for verdict in each)
        rate[cell.cause, cell.share, cell.rounds] = hits / len(each)
    print(f"\nnamed at medium or high, noise {POWER_NOISE:.0%}, by rounds; and rounds until {ENOUGH:.0%}")
    print(f"{'':<24}" + " ".join(f"{rounds:>5}" for rounds in POWER_ROUNDS) + "  rounds")
    needed: dict[str, int | None] = {}
    for cause, share in product(CAUSES, POWER):
        row = [rate[cause, share, rounds] for rounds in POWER_ROUNDS]
        enough = next((r for r, hit in zip(POWER_ROUNDS, row, strict=True) if hit >= ENOUGH), None)
        needed[f"{cause} {share:.0%}"] = enough
        print(
            f"{cause:<18} {share:>4.0%} " + " ".join(f"{hit:>5.0%}" for hit in row) + f"  {enough or '>24'}"
        )
    at_bar = [rate[cause, POWER[-1], WITHIN] for cause in CAUSES]
    return min(at_bar) >= ENOUGH, {"rounds_needed": needed, "power_at_six": min(at_bar)}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--draws", type=int, default=60, help="of each cell")
    options.add_argument("--runs", type=int, default=100, help="whole simulated runs")
    asked = options.parse_args()
    quiet = [Cell(*each) for each in product(NOISES, MODES, ROUNDS, LOOPS)]
    noises, modes, ranks, uneven = BY_TURNS
    by_turns = [Cell(*each, ranks=ranks, uneven=uneven) for each in product(noises, modes, ROUNDS, LOOPS)]
    true = [
        Cell(POWER_NOISE, "steady", rounds, True, cause, share)
        for cause, share, rounds in product(CAUSES, POWER, POWER_ROUNDS)
    ]
    whole = [cell for cell in quiet if cell.harness and cell.mode in ("steady", "drift")]
    whole = [whole[k % len(whole)] for k in range(asked.runs)]
    quiet += by_turns
    with ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("spawn")
    ) as pool:  # polars survives no fork
        seeds = [asked.seed * 10_000 + k for k in range(len(quiet) + len(true) + len(whole))]
        first = pool.map(runs, quiet, seeds, [asked.draws] * len(quiet))
        second = pool.map(runs, true, seeds[len(quiet) :], [max(20, asked.draws // 3)] * len(true))
        third = pool.map(cluster, whole, seeds[len(quiet) + len(true) :])
        counts, true_counts, simulated = dict(first), dict(second), list(third)
    rates_ok, figures = table(counts)
    power_ok, powers = power(true_counts)
    alike = {cell: counts[cell] for cell in set(whole)}
    drawn = [named(each) for all_of in alike.values() for each in all_of]
    of_runs = [named(each) for each in simulated]
    hits, share = sum(map(bool, of_runs)), sum(map(bool, drawn)) / max(1, len(drawn))
    agree = True
    if of_runs:
        from scipy.stats import binom

        low, high = binom.interval(0.99, len(of_runs), max(share, 1 / max(1, len(drawn))))
        agree = bool(hits <= high)
        print(
            f"\n{len(of_runs)} whole simulated runs: a false cause in {hits} (at high in "
            f"{sum('high' in each.values() for each in of_runs)}); the draws of the same cells say {share:.1%}, which "
            f"is {low:.0f} to {high:.0f} of them"
        )
    return result(
        "false_alarms", ok=rates_ok and power_ok and agree, **figures, **powers, simulated_false=hits
    )


if __name__ == "__main__":
    exit_with(main)
