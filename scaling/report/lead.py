"""The five lines that a report begins with: the answer, why, how sure, what to try, where the page is."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.results import NO_CAUSE, Analysis, Verdict
from scaling.analysis.results.run import CONTENDED
from scaling.plain import one_line
from scaling.report import findings, text
from scaling.report.answer import answer
from scaling.report.model import Line
from scaling.spec.ended import SETTLED
from scaling.spec.plan import Plan

WARNING_MOST, TRIAL_MOST = 110, 240
"""Characters of the first warning, and of a trial that failed, that are shown."""

HINT = "so this is a hint, not a finding"
"""How a doubt among the evidence ends; it is said under `how sure`."""


def lead(analysis: Analysis, plan: Plan, page: str = "") -> tuple[Line, ...]:
    """`page`: path of the page; empty where there is none."""
    found = _main(analysis)
    pairs = (
        ("answer", f"{analysis.run.model} on {analysis.run.topology}: {answer(analysis)}"),
        ("why", _why(found)),
        ("how sure", "; ".join(_how_sure(analysis, plan, found))),
        ("try", _try(analysis, found)),
        ("page", page),
    )
    return tuple(Line(name=name, text=said) for name, said in pairs if said)


def _main(analysis: Analysis) -> Verdict | None:
    """The verdict that the answer rests on: the first cause at the largest world size, else what is said instead."""
    largest = max((v.world_size for v in analysis.verdicts), default=0)
    here = [v for v in analysis.verdicts if v.world_size == largest]
    causes = [v for v in here if v.cause not in NO_CAUSE]
    return next((v for v in causes if v.cause != "slow_path"), next(iter([*causes, *here]), None))


def _why(found: Verdict | None) -> str:
    if found is None:
        return ""
    said = [one_line(line) for line in found.evidence if not line.endswith(HINT)]
    return text.sentence("; ".join(said[:2])) if said else ""


def _how_sure(analysis: Analysis, plan: Plan, found: Verdict | None) -> Iterator[str]:
    if analysis.run.simulated:
        yield "SIMULATED accelerators (times are those of a model)"
    if analysis.run.synthetic:
        yield "SYNTHETIC compute (sleeps)"
    if plan.spec.inject.active:
        yield "faults INJECTED"
    if found is not None and found.cause not in NO_CAUSE:
        yield f"confidence {found.confidence}"
    yield from analysis.quality.reached[:1]
    failed = [findings.trial_line(t) for t in analysis.trials if t.status not in SETTLED]
    yield from (_short(line, TRIAL_MOST) for line in failed)
    warnings = sorted(analysis.quality.warnings, key=lambda said: not said.startswith(CONTENDED))
    if warnings:
        yield f"{text.count(len(warnings), 'warning')}: {_short(warnings[0], WARNING_MOST)}"


def _short(said: str, most: int) -> str:
    line = one_line(said)
    return line if len(line) <= most else f"{line[:most].rstrip()}..."


def _try(analysis: Analysis, found: Verdict | None) -> str:
    if found is None:
        return ""
    if not found.try_:
        return "nothing that is known to help" if found.cause not in NO_CAUSE else ""
    first, *_ = found.try_
    more = sum(len(v.try_) for v in analysis.verdicts if v.world_size == found.world_size) - 1
    others = f"; {more} more with -v" if more > 0 else ""
    what = f"{first.overrides} (in code: {first.code})" if first.overrides and first.code else ""
    return f"{what or first.overrides or first.code}{findings.gain(first)}{others}"
