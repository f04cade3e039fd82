"""The findings in sentences, the same in every renderer."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.results import (
    Analysis,
    Comm,
    Comparison,
    Cost,
    CostComparison,
    Level,
    Loader,
    Measured,
    Memory,
    Overhead,
    Point,
    PointComparison,
    Prediction,
    Quality,
    Remedy,
    RunInfo,
    SettingDifference,
    Straggler,
    TrialOutcome,
    Verdict,
)
from scaling.report import cases
from scaling.report.text import (
    NONE,
    PARTS,
    cause_name,
    change,
    count,
    number,
    percent,
    plain,
    quantity,
    ranks,
    sentence,
    status_name,
    value_of,
)
from scaling.units import format_bytes

NAMED_SETTINGS = 2
"""Runs that differ in no more settings are called by them."""
OPEN_VERDICTS = ("undecided", "scales_well")
"""Verdicts that name no cause."""


def answer(analysis: Analysis) -> str:
    """How well the run scales and what eats most of the rest, in a sentence or two."""
    if analysis.inference or analysis.training:
        return cases.answer(analysis)
    measured = [p for p in analysis.points if p.step_ms is not None]
    missing = _missing(analysis)
    if not measured:
        return f"Nothing could be measured. {missing}".strip()
    point = max(measured, key=lambda p: p.world_size)
    if point.efficiency is None or point.world_size == 1:
        alone = f"A step at {ranks(point.world_size)} takes {quantity(point.step_ms, 'ms')}"
        if analysis.trace is not None and point.world_size > 1:
            return f"{alone}{_main_part(analysis, point)} {missing}".strip()
        why = "a second world size" if point.world_size == 1 else "the baseline of one rank"
        if point.loss is None:
            return f"{alone}; without {why} there is no efficiency to report. {missing}".strip()
        free = point.comm.free_speedup if point.comm else None
        at_most = f" It would be {free_line(free)}." if free else ""
        return (
            f"{alone}{_main_cause(analysis, point)}{at_most} Without {why} there is no efficiency to report. "
            f"{missing}"
        ).strip()
    kept = f"At {ranks(point.world_size)} the run keeps {percent(point.efficiency)} of ideal"
    return f"{kept}{_main_cause(analysis, point)} {missing}".strip()


def _main_cause(analysis: Analysis, point: Point) -> str:
    here = [v for v in analysis.verdicts if v.world_size == point.world_size]
    named = [v for v in here if v.cause not in OPEN_VERDICTS and v.share is not None]
    if named:
        main = max(named, key=lambda v: v.share.value if v.share else 0.0)
        share = main.share.value if main.share else 0.0
        if point.efficiency is None:
            return f"; {value_of(main.share, 100)} % of it is {cause_name(main.cause)}."
        if main.cause == "input" and share > 1 - point.efficiency.value:  # alone it waits as well
            return f"; but {value_of(main.share, 100)} % of every step waits for {cause_name(main.cause)}."
        part = "most" if share > (1 - point.efficiency.value) / 2 else "the largest part"
        return (
            f"; {part} of the loss, {value_of(main.share, 100)} % of the step, is {cause_name(main.cause)}."
        )
    if any(v.cause == "scales_well" for v in here):
        return ": it scales well."
    if any(v.cause == "undecided" for v in here):
        return "; what takes the rest is undecided."
    return "."


def _main_part(analysis: Analysis, point: Point) -> str:
    """From traces alone there is no efficiency: what takes most of the step beside compute."""
    here = [v for v in analysis.verdicts if v.world_size == point.world_size and v.share is not None]
    if not here:
        return "; what takes it beside compute is undecided."
    main = max(here, key=lambda v: v.share.value if v.share else 0.0)
    return f"; beside compute most of it, {value_of(main.share, 100)} %, is {cause_name(main.cause)}."


def _missing(analysis: Analysis) -> str:
    lost = [t for t in analysis.trials if t.status != "done"]
    if not lost:
        return ""
    if len(lost) == 1:
        return f"The trial at {ranks(lost[0].world_size)} is missing ({status_name(lost[0].status)})."
    return f"{len(lost)} of {len(analysis.trials)} trials are missing."


def straggler_line(straggler: Straggler) -> str:
    """Who is late, where, at which cost, and whether by itself."""
    alone = {
        True: "it is slow by itself too",
        False: "alone it is as fast as the others",
        None: "whether it is slow alone was not measured",
    }[straggler.by_itself]
    phase = PARTS.get(straggler.phase, plain(straggler.phase))
    cost, skew = quantity(straggler.cost_ms, "ms"), quantity(straggler.skew_ms, "ms")
    return f"rank {straggler.rank} is late in {phase} and costs {cost} a step (skew {skew}); {alone}"


def overhead_line(overhead: Overhead) -> str:
    """The probe's own cost beside what two runs of the same thing differ by."""
    own, floor = change(overhead.probe_over_plain), change(overhead.aa_floor)
    return f"{own} of the plain step; plain against plain (A/A floor) {floor}"


def closure_line(closure: Measured) -> str:
    """The check that can fail: a step put together from its pieces against the measured one."""
    return f"the step simulated from its pieces is {percent(closure)} of the measured one"


def loader_line(loader: Loader) -> str:
    """Who makes the batches, how fast, and how much of a step waits for them."""
    who = count(loader.workers, "worker") + " a rank" if loader.workers else "the training process"
    waits = f"; {percent(loader.wait_share)} of the step waits for batches" if loader.wait_share else ""
    needed = f"; {count(loader.workers_needed, 'worker')} would do" if loader.workers_needed else ""
    return f"made by {who}, a batch in {quantity(loader.make_ms, 'ms')}{waits}{needed}"


def memory_line(memory: Memory, device: str) -> str:
    """The most that a rank held, and what of the device's memory its group's communicator takes."""
    kind = "resident" if device == "cpu" else "allocated by torch"
    lines = [f"{format_bytes(memory.peak_bytes)} a rank at most ({kind})"] if memory.peak_bytes else []
    if memory.communicators_bytes is not None:
        lines.append(f"{format_bytes(memory.communicators_bytes)} for the group's communicator")
    return "; ".join(lines)


def cost_line(cost: Cost) -> str:
    """Money and energy, as far as they are known; empty where neither is."""
    parts = []
    if cost.usd_per_million_samples:
        parts.append(f"{quantity(cost.usd_per_million_samples, 'USD')} a million samples")
    if cost.power_w:
        parts.append(f"{quantity(cost.power_w, 'W')} of all ranks' GPU boards")
    if cost.samples_per_joule:
        parts.append(f"{quantity(cost.samples_per_joule)} samples a joule")
    return "; ".join(parts)


def comm_line(comm: Comm, rate_source: str) -> str:
    """What a step sends, at which bandwidth, and how that compares."""
    parts = [f"{format_bytes(comm.bytes_per_step)} a rank and step in {count(len(comm.buckets), 'bucket')}"]
    if comm.busbw_gbit_s:
        parts.append(f"busbw {quantity(comm.busbw_gbit_s, 'Gbit/s')}")
    if comm.curve_share:
        parts.append(f"{percent(comm.curve_share)} of the machine's own curve")
    if comm.nominal_share:
        source = f" ({plain(rate_source)})" if rate_source else ""
        parts.append(f"{percent(comm.nominal_share)} of nominal{source}")
    if comm.free_speedup:
        parts.append(free_line(comm.free_speedup))
    if comm.hidden_share:
        parts.append(f"{percent(comm.hidden_share)} of the transfer hidden behind compute")
    return "; ".join(parts)


def free_line(speedup: Measured) -> str:
    """What a better network could give at most."""
    low, high = max(1.0, speedup.low or 1.0), speedup.high
    within = "" if speedup.low is None or high is None else f" ({number(low, 2)} to {number(high, 2)})"
    return (
        f"at most x{number(max(1.0, speedup.value), 2)}{within} faster if communication were free and compute "
        "as it is"
    )


def level_line(level: Level) -> str:
    """One level of the fabric: latency a hop and bandwidth, with the nominal rate where known."""
    return f"{plain(level.name)}, {ranks(level.world_size)}: {level_figures(level)}"


def level_figures(level: Level) -> str:
    """The same without the level's name."""
    rate = "unknown" if level.nominal_gbit_s is None else f"{number(level.nominal_gbit_s)} Gbit/s"
    alpha, busbw = quantity(level.alpha_us, "us"), quantity(level.busbw_gbit_s, "Gbit/s")
    return f"alpha {alpha} a hop, busbw {busbw}, nominal {rate}"


def verdict_title(verdict: Verdict) -> str:
    """The finding as a headline: `link bandwidth, 33.1 % ±0.4 of the step at 2 ranks`."""
    share = f", {percent(verdict.share)} of the step" if verdict.share else ""
    return f"{cause_name(verdict.cause)}{share} at {ranks(verdict.world_size)}"


def quality_lines(quality: Quality) -> tuple[str, ...]:
    """How well the numbers are known, and what stands against them."""
    return (*measured_lines(quality), *(plain(w) for w in quality.warnings))


def measured_lines(quality: Quality) -> tuple[str, ...]:
    """How well the numbers are known."""
    lines = [plain(text) for text in quality.reached]
    if quality.clock_bound_us:
        lines.append(f"the ranks' clocks are compared to within {quality.clock_bound_us:.0f} us")
    if quality.dropped_samples:
        lines.append(f"{count(quality.dropped_samples, 'sample')} dropped")
    return tuple(lines)


def trial_line(trial: TrialOutcome) -> str:
    """A trial that did not finish: how it ended, where, and with which error."""
    where = "" if trial.rank is None else f" on rank {trial.rank}"
    error = f": {plain(trial.error)}" if trial.error else ""
    return f"{ranks(trial.world_size)}: {status_name(trial.status)}{where}{error}"


def run_names(comparison: Comparison) -> tuple[str, str]:
    """What tells the two runs apart: the settings that differ, or their ids."""
    asked = [s for s in comparison.settings if s.of == "settings"]
    if not _differing([comparison.base, comparison.other]) and 0 < len(asked) <= NAMED_SETTINGS:
        told = (
            ", ".join(f"{s.key}={getattr(s, role) or 'unset'}" for s in asked) for role in ("base", "other")
        )
        base, other = map(plain, told)
    else:
        base, other = names_of([comparison.base, comparison.other])
    return base, other


def names_of(runs: Sequence[RunInfo]) -> tuple[str, ...]:
    """What tells several runs apart: the settings that differ between them, or their ids where these do not suffice."""
    names = [plain(", ".join(getattr(run, f) for f in _differing(runs))) for run in runs]
    if len(set(names)) == len(runs):
        return tuple(names)
    return tuple(plain(f"{name} {run.id}".strip()) for name, run in zip(names, runs, strict=True))


def _differing(runs: Sequence[RunInfo]) -> list[str]:
    fields = ("model", "topology", "precision", "mode", "backend", "device", "device_name")
    return [f for f in fields if len({getattr(run, f) for run in runs}) > 1]


def split_line(point: PointComparison) -> str:
    """`x1.9 = x1.4 compute x x1.36 fabric x x1.00 left`; empty where it was not split."""
    split = point.split
    if split is None:
        return ""
    parts = [(split.compute, "compute"), (split.fabric, "fabric"), (split.left, "left")]
    product = " x ".join(f"x{quantity(value)} {name}" for value, name in parts)
    return f"x{value_of(point.ratio)} = {product} (a rank alone computes x{quantity(split.alone)} as fast)"


def cost_lines(cost: CostComparison) -> tuple[str, ...]:
    """Money and energy of either run, and what the other gives for as much."""
    lines = []
    a, b = cost.base, cost.other
    if a.usd_per_million_samples or b.usd_per_million_samples:
        more = f": x{quantity(cost.per_usd)} the samples a dollar" if cost.per_usd else ""
        lines.append(
            f"{quantity(b.usd_per_million_samples, 'USD')} a million samples, base "
            f"{quantity(a.usd_per_million_samples, 'USD')}{more}"
        )
    if a.samples_per_joule or b.samples_per_joule:
        more = f": x{quantity(cost.per_joule)}" if cost.per_joule else ""
        lines.append(
            f"{quantity(b.samples_per_joule)} samples a joule, base {quantity(a.samples_per_joule)}{more}"
        )
    return tuple(lines)


def setting_line(setting: SettingDifference) -> str:
    """`ddp.bucket_cap_mb: 25 and 100`."""
    a, b = (NONE if value is None else plain(value) for value in (setting.base, setting.other))
    return f"{plain(setting.key)}: {a} and {b}"


def largest_causes(causes: dict[str, Measured | None], most: int) -> tuple[tuple[str, Measured], ...]:
    """The causes of a difference that weigh most, largest first, whichever their sign."""
    known = [(cause, value) for cause, value in causes.items() if value is not None]
    return tuple(sorted(known, key=lambda pair: -abs(pair[1].value))[:most])


def undistinguished(ratio: Measured) -> str:
    """Why a ratio counts for nothing."""
    return "no interval" if ratio.low is None else "not distinguishable"


def comparison_answer(comparison: Comparison) -> str:
    """Which run is faster, or that one cannot tell."""
    if not comparison.comparable:
        return f"The two runs are not comparable: {'; '.join(map(plain, comparison.reasons))}."
    if comparison.cases:
        return cases.comparison_answer(comparison, run_names(comparison))
    measured = [p for p in comparison.points if p.ratio is not None]
    if not measured:
        return "The two runs have no world size in common that was measured in both."
    point = max(measured, key=lambda p: p.world_size)
    at, ratio = f"At {ranks(point.world_size)}", quantity(point.ratio)
    if point.ratio is not None and point.ratio.low is None:
        return f"{at} the throughput ratio is {ratio}, from too few rounds for an interval: measure longer."
    if not point.distinguishable or point.ratio is None:
        return f"{at} the two runs are not distinguishable: their throughput ratio is {ratio}."
    base, other = run_names(comparison)
    faster = "faster" if point.ratio.value > 1 else "slower"
    said = f"{at} {other} is {faster} than {base}: {ratio} times its throughput."
    return " ".join([said, *(sentence(line) for line in cost_lines(point.cost)[:1])])


def comparisons_answer(comparisons: Sequence[Comparison], names: Sequence[str]) -> str:
    """The fastest of several runs at the largest world size that all have, or that none is told from the base."""
    like = [(name, one) for name, one in zip(names[1:], comparisons, strict=True) if one.comparable]
    if not like:
        return f"None of these runs is comparable with {names[0]}."
    shared = set.intersection(*({p.world_size for p in one.points if p.ratio} for _, one in like))
    if not shared:
        return "These runs have no world size in common that was measured in all."
    n = max(shared)
    found = [(name, next(p for p in one.points if p.world_size == n)) for name, one in like]
    clear = [(name, p.ratio) for name, p in found if p.distinguishable and p.ratio is not None]
    faster = [(name, ratio) for name, ratio in clear if ratio.value > 1]
    if not clear:
        return f"At {ranks(n)} none of these runs is distinguishable from {names[0]}."
    if not faster:
        return f"At {ranks(n)} {names[0]} is the fastest: none of the others is distinguishably faster."
    name, ratio = max(faster, key=lambda pair: pair[1].value)
    return f"At {ranks(n)} {name} is the fastest: {quantity(ratio)} times the throughput of {names[0]}."


def gain(remedy: Remedy) -> str:
    """`: +43 % throughput predicted`, or nothing where nothing was predicted."""
    return f": {change(remedy.predicted_gain)} throughput predicted" if remedy.predicted_gain else ""


def prediction_conditions(prediction: Prediction) -> tuple[tuple[str, str], ...]:
    """What was asked of which run, as (name, text)."""
    run = prediction.run
    synthetic = ", SYNTHETIC compute" if run.synthetic else ""
    asked = ", ".join(prediction.changes) or "nothing changed"
    return (
        ("run", plain(f"{run.model} on {run.topology} ({run.id}{synthetic})")),
        ("predicted", plain(f"{asked}; topology {prediction.topology}")),
    )


def prediction_answer(prediction: Prediction) -> str:
    """What to expect at the largest world size, where it stops to pay, and how far the model can be trusted."""
    why = next((p.cannot for p in prediction.points if p.cannot), None)
    if why is not None:
        return sentence(f"cannot say: {plain(why)}")
    last = prediction.points[-1]
    said = [
        f"{ranks(last.world_size)}: a step of {quantity(last.step_ms, 'ms')}, efficiency {percent(last.efficiency)}"
    ]
    if prediction.half_at is None and prediction.looked_up_to:
        said.append(f"efficiency stays above a half up to {ranks(prediction.looked_up_to)}")
    elif prediction.half_at is not None:
        said.append(f"efficiency falls below a half at {ranks(prediction.half_at)}")
    if prediction.backtest:
        worst = max(prediction.backtest, key=lambda test: abs(test.error))
        said.append(
            f"left out and predicted, {ranks(worst.world_size)} of this run came out {worst.error:+.1%} off"
        )
    return " ".join(sentence(part) for part in said)
