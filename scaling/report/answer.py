"""The answer of a run, how well it scales and what most of the loss is, and the five lines that a report begins with.

These are the answer, why, how sure, what to try, and where the page is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from scaling.analysis.results import NO_CAUSE, Analysis, Measured, Point, Verdict, at, ratio_of
from scaling.analysis.results.run import CONTENDED
from scaling.plain import one_line
from scaling.report import cases, findings, text
from scaling.report.model import Line, named
from scaling.report.strategies import slower_lines, strategies_answer
from scaling.report.text import cause_name, percent, quantity, ranks, status_name, value_of
from scaling.settings.plan import SETTLED, Plan
from scaling.units import UNKNOWN

BESIDE = 0.05
"""What a loop does beside its steps, and what changes on the way, is in the answer from this share of the time on."""


def answer(analysis: Analysis) -> str:
    """How well the run scales and what eats most of the rest, in a sentence or two.

    Where ranks share a device, that comes first: no efficiency is that of several devices.
    """
    shared = analysis.run.ranks_per_device
    device = "GPU" if analysis.run.device == "cuda" else "device"
    largest = max(analysis.points, key=lambda p: p.world_size, default=None)
    beside = (
        (*findings.beside_lines(largest, BESIDE), *findings.drift_lines(largest, BESIDE)) if largest else ()
    )
    whole = " ".join((_answer(analysis), *map(text.sentence, beside)))
    return f"One {device} shared by {ranks(shared)}. {whole}" if shared > 1 else whole


def _answer(analysis: Analysis) -> str:
    if analysis.inference or analysis.training:
        return cases.answer(analysis)
    if strategy_answer := strategies_answer(analysis.strategies):
        return strategy_answer
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
        at_most = f" It would be {findings.free_line(free)}." if free else ""
        return (
            f"{alone}{_main_cause(analysis, point)}{at_most} Without {why} there is no efficiency to report. "
            f"{missing}"
        ).strip()
    base = point.base_world_size
    reference = "ideal" if base == 1 else f"the throughput a rank at {ranks(base)}"
    kept = f"At {ranks(point.world_size)} the run keeps {percent(point.efficiency)} of {reference}"
    if not point.efficiency.tells:
        kept = f"At {ranks(point.world_size)} the efficiency is {UNKNOWN}: too few rounds, or too uneven ones"
    one_rank = at(1, measured)
    slower = slower_lines([(p.world_size, "", _over_one(p, one_rank)) for p in measured if base == 1])
    slow = " ".join(f"{line}." for line in slower)
    return " ".join(part for part in (f"{kept}{_main_cause(analysis, point)}", slow, missing) if part)


def _over_one(point: Point, one_rank: Point | None) -> Measured | None:
    """Samples a second over those of the run's own step at one rank, where that was measured; else a bare rank's."""
    return ratio_of(point.samples_per_s, one_rank.samples_per_s) if one_rank else point.speedup


def _main_cause(analysis: Analysis, point: Point) -> str:
    here = [v for v in analysis.verdicts if v.world_size == point.world_size]
    causes = [v for v in here if v.cause not in NO_CAUSE and v.share is not None]
    if causes:
        main = next((v for v in causes if v.cause != "slow_path"), causes[0])  # verdicts are sorted by weight
        assert main.share is not None
        grown = point.loss.input if point.loss and main.cause == "input" else None
        waits, cause = value_of(main.share, 100), cause_name(main.cause)
        hint = " (a hint only)" if main.confidence == "low" else ""
        if point.efficiency is None:
            return f"; {waits} % of it is {cause}{hint}."
        # A wait that one rank alone has too is no loss of scaling: it has to have grown, by half of its length.
        mostly = grown is not None and grown.surely_above(0) and grown.value >= main.share.value / 2
        if main.cause == "input" and not mostly:
            return f"; but {waits} % of every step waits for {cause}{hint}."
        if point.loss is None:  # traces do not show what a rank alone would have
            return f"; {waits} % of every step is {cause}{hint}."
        lost = main.share if grown is None else grown
        part, share = _part(lost, point, point.efficiency), value_of(lost, 100)
        if part is None:
            verb = "may be" if hint else "is shown to be"
            return f"; {share} % of the step {verb} lost to {cause}{hint}."
        return f"; {part} of the loss, {share} % of the step, is {cause}{hint}."
    if any(v.cause == "scales_well" for v in here):
        return ": it scales well."
    if any(v.cause == "undecided" for v in here):
        return "; what takes the rest is undecided."
    return "."


def _part(share: Measured, point: Point, efficiency: Measured) -> str | None:
    """How large a part of the loss a cause is; None where another term may be the largest.

    It is None as well where the loss is smaller than the cause: other terms are gains then, and no part can be named.
    """
    if point.loss is None or share.value > 1 - efficiency.value:
        return None
    lost = 1 - efficiency.least
    if share.surely_above(lost / 2):
        return "most"
    terms = [getattr(point.loss, f.name) for f in fields(point.loss)]
    return "the largest part" if all(t is None or t.value <= share.value for t in terms) else None


def _main_part(analysis: Analysis, point: Point) -> str:
    """What takes most of the step beside compute. Traces alone give no efficiency."""
    here = [v for v in analysis.verdicts if v.world_size == point.world_size and v.share is not None]
    if not here:
        return "; what else takes it is undecided."
    main = max(here, key=lambda v: v.share.value if v.share else 0.0)
    return (
        f"; apart from compute the largest part, {value_of(main.share, 100)} %, is {cause_name(main.cause)}."
    )


def _missing(analysis: Analysis) -> str:
    lost = [t for t in analysis.trials if t.status not in SETTLED]
    if not lost:
        return ""
    measured_sizes = {p.world_size for p in analysis.points if p.step_ms is not None}
    in_part = [t for t in lost if t.world_size in measured_sizes]
    if len(lost) == 1:
        what = "was measured in part" if in_part else "is missing"
        return f"The trial at {ranks(lost[0].world_size)} {what} ({status_name(lost[0].status)})."
    gone = len(lost) - len(in_part)
    counts = [
        f"{len(in_part)} {'was' if len(in_part) == 1 else 'were'} measured in part" if in_part else "",
        f"{gone} {'is' if gone == 1 else 'are'} missing" if gone else "",
    ]
    return f"Of {len(analysis.trials)} trials {' and '.join(filter(None, counts))}."


WARNING_MOST, TRIAL_MOST = 110, 240
"""Characters of the first warning, and of a trial that failed, that are shown."""

HINT = "so this is a hint, not a finding"
"""How a doubt among the evidence ends; it is said under `how sure`."""


def lead(analysis: Analysis, plan: Plan, page: str = "") -> tuple[Line, ...]:
    """`page`: path of the page; empty where there is none."""
    verdict = _main(analysis)
    return named(
        ("answer", f"{analysis.run.model} on {analysis.run.topology}: {answer(analysis)}"),
        ("why", _why(verdict)),
        ("how sure", "; ".join(_how_sure(analysis, plan, verdict))),
        ("try", _try(analysis, verdict)),
        ("page", page),
    ).items


def _main(analysis: Analysis) -> Verdict | None:
    """The verdict that the answer rests on: the first cause at the largest world size, else what is said instead."""
    largest = max((v.world_size for v in analysis.verdicts), default=0)
    here = [v for v in analysis.verdicts if v.world_size == largest]
    causes = [v for v in here if v.cause not in NO_CAUSE]
    return next((v for v in causes if v.cause != "slow_path"), next(iter([*causes, *here]), None))


def _why(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    evidence = [one_line(line) for line in verdict.evidence if not line.endswith(HINT)]
    return text.sentence("; ".join(evidence[:2])) if evidence else ""


def _how_sure(analysis: Analysis, plan: Plan, verdict: Verdict | None) -> Iterator[str]:
    if analysis.run.simulated:
        yield "SIMULATED accelerators (times are those of a model)"
    if analysis.run.synthetic:
        yield "SYNTHETIC compute (sleeps)"
    if plan.spec.inject.active:
        yield "faults INJECTED"
    if verdict is not None and verdict.cause not in NO_CAUSE:
        yield f"confidence {verdict.confidence}"
    yield from analysis.quality.reached[:1]
    failed = [findings.trial_line(t) for t in analysis.trials if t.status not in SETTLED]
    yield from (_short(line, TRIAL_MOST) for line in failed)
    warnings = sorted(analysis.quality.warnings, key=lambda warning: not warning.startswith(CONTENDED))
    if warnings:
        yield f"{text.count(len(warnings), 'warning')}: {_short(warnings[0], WARNING_MOST)}"


def _short(message: str, most: int) -> str:
    line = one_line(message)
    return line if len(line) <= most else f"{line[:most].rstrip()}..."


def _try(analysis: Analysis, verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    if not verdict.try_:
        return "nothing that is known to help" if verdict.cause not in NO_CAUSE else ""
    first, *_ = verdict.try_
    more = sum(len(v.try_) for v in analysis.verdicts if v.world_size == verdict.world_size) - 1
    others = f"; {more} more with -v" if more > 0 else ""
    what = f"{first.overrides} (in code: {first.code})" if first.overrides and first.code else ""
    return f"{what or first.overrides or first.code}{findings.gain(first)}{others}"
