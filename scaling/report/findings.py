"""The findings of a run in sentences, the same in every renderer."""

from __future__ import annotations

from dataclasses import fields

from scaling.analysis.results import (
    Analysis,
    Comm,
    Cost,
    Fits,
    Level,
    Loader,
    Measured,
    Memory,
    Overhead,
    Point,
    Quality,
    Remedy,
    Straggler,
    TrialOutcome,
    Verdict,
)
from scaling.report import cases
from scaling.report.text import (
    PARTS,
    cause_name,
    change,
    count,
    number,
    percent,
    plain,
    quantity,
    ranks,
    status_name,
    value_of,
)
from scaling.units import format_bytes

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
    base = point.base_world_size
    of = "ideal" if base == 1 else f"the throughput a rank at {ranks(base)}"
    kept = f"At {ranks(point.world_size)} the run keeps {percent(point.efficiency)} of {of}"
    return f"{kept}{_main_cause(analysis, point)} {missing}".strip()


def _main_cause(analysis: Analysis, point: Point) -> str:
    here = [v for v in analysis.verdicts if v.world_size == point.world_size]
    named = [v for v in here if v.cause not in OPEN_VERDICTS and v.share is not None]
    if named:
        main = next((v for v in named if v.cause != "slow_path"), named[0])  # the verdicts' own order
        assert main.share is not None
        grown = point.loss.input if point.loss and main.cause == "input" else None
        waits, cause = value_of(main.share, 100), cause_name(main.cause)
        hint = " (a hint only)" if main.confidence == "low" else ""
        if point.efficiency is None:
            return f"; {waits} % of it is {cause}{hint}."
        # What one rank alone waits as well is no loss of scaling.
        if main.cause == "input" and not _mostly(grown, main.share):
            return f"; but {waits} % of every step waits for {cause}{hint}."
        if point.loss is None:  # traces tell what a step has, a rank alone or not
            return f"; {waits} % of every step is {cause}{hint}."
        lost = main.share if grown is None else grown
        part, share = _part(lost, point, point.efficiency), value_of(lost, 100)
        if part is None:
            return f"; {share} % of the step is shown to be lost to {cause}{hint}."
        return f"; {part} of the loss, {share} % of the step, is {cause}{hint}."
    if any(v.cause == "scales_well" for v in here):
        return ": it scales well."
    if any(v.cause == "undecided" for v in here):
        return "; what takes the rest is undecided."
    return "."


def _mostly(grown: Measured | None, waits: Measured) -> bool:
    """Whether a wait is known to have grown, and by half of what it is or more."""
    return grown is not None and (grown.low or 0.0) > 0 and grown.value >= waits.value / 2


def _part(share: Measured, point: Point, efficiency: Measured) -> str | None:
    """What part of the loss a cause can be said to be; None where some other term of it may be the largest.

    None too where the loss is smaller than the cause: other terms are gains then, and a part of it says nothing.
    """
    if point.loss is None or share.value > 1 - efficiency.value:
        return None
    lost = 1 - (efficiency.value if efficiency.low is None else efficiency.low)
    if share.low is not None and share.low > lost / 2:
        return "most"
    terms = [getattr(point.loss, f.name) for f in fields(point.loss)]
    return "the largest part" if all(t is None or t.value <= share.value for t in terms) else None


def _main_part(analysis: Analysis, point: Point) -> str:
    """From traces alone there is no efficiency: what takes most of the step beside compute."""
    here = [v for v in analysis.verdicts if v.world_size == point.world_size and v.share is not None]
    if not here:
        return "; what takes it beside compute is undecided."
    main = max(here, key=lambda v: v.share.value if v.share else 0.0)
    return f"; beside compute the largest part, {value_of(main.share, 100)} %, is {cause_name(main.cause)}."


def _missing(analysis: Analysis) -> str:
    lost = [t for t in analysis.trials if t.status != "done"]
    if not lost:
        return ""
    known = {p.world_size for p in analysis.points if p.step_ms is not None}
    in_part = [t for t in lost if t.world_size in known]
    if len(lost) == 1:
        what = "was measured in part" if in_part else "is missing"
        return f"The trial at {ranks(lost[0].world_size)} {what} ({status_name(lost[0].status)})."
    gone = len(lost) - len(in_part)
    said = [
        f"{len(in_part)} {'was' if len(in_part) == 1 else 'were'} measured in part" if in_part else "",
        f"{gone} {'is' if gone == 1 else 'are'} missing" if gone else "",
    ]
    return f"Of {len(analysis.trials)} trials {' and '.join(filter(None, said))}."


def straggler_line(straggler: Straggler) -> str:
    """Who is late, where, at which cost, and whether by itself."""
    alone = {
        True: "it is slow by itself too",
        False: "alone it is as fast as the others",
        None: "whether it is slow alone was not measured",
    }[straggler.by_itself]
    phase = PARTS.get(straggler.phase, plain(straggler.phase))
    cost, skew = quantity(straggler.cost_ms, "ms"), quantity(straggler.skew_ms, "ms")
    who = f"rank {straggler.rank} is late in {phase} and costs"
    if straggler.host is not None:
        who = f"all ranks of host {straggler.host} are late in {phase}, rank {straggler.rank} most, and cost"
    return f"{who} {cost} a step (skew {skew}); {alone}"


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


def fit_lines(fits: Fits) -> tuple[str, ...]:
    """Laws fitted over the world sizes, one line each."""
    lines = []
    if fits.karp_flatt:
        each = ", ".join(f"{percent(k.serial_fraction)} at {ranks(k.world_size)}" for k in fits.karp_flatt)
        lines.append(f"serial fraction (Karp-Flatt): {each}")
    if fits.usl:
        peak = fits.usl.peak_world_size
        most = f"; by it throughput is highest at {ranks(round(peak))}" if peak else ""
        lines.append(
            f"Universal Scalability Law: contention {quantity(fits.usl.sigma)}, "
            f"coherency {quantity(fits.usl.kappa)}{most}"
        )
    return tuple(lines)


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
        lines.append(f"the ranks' clocks are known to within {quality.clock_bound_us:.0f} us")
    if quality.device_clock_bound_us:
        bound = number(quality.device_clock_bound_us, 2)
        lines.append(f"the devices' events are told in host time to within {bound} us")
    if quality.dropped_samples:
        lines.append(f"{count(quality.dropped_samples, 'sample')} dropped")
    return tuple(lines)


def trial_line(trial: TrialOutcome) -> str:
    """A trial that did not finish: how it ended, where, and with which error."""
    where = "" if trial.rank is None else f" on rank {trial.rank}"
    error = f": {plain(trial.error)}" if trial.error else ""
    return f"{ranks(trial.world_size)}: {status_name(trial.status)}{where}{error}"


def gain(remedy: Remedy) -> str:
    """`: +43 % throughput predicted`, or nothing where nothing was predicted."""
    return f": {change(remedy.predicted_gain)} throughput predicted" if remedy.predicted_gain else ""
