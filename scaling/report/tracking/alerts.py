"""Alerts for W&B to send: a regression, throttling, missing trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.results import Analysis, Comparison, RunInfo
from scaling.plain import plain
from scaling.report import cases, findings, text, versus
from scaling.spec.ended import SETTLED

TITLE_MAX = 63
"""Characters of a title that W&B accepts."""

Alert = dict[str, str]


def alerts(analysis: Analysis) -> Iterator[Alert]:
    """The alerts of one run, each as {title, text, level}."""
    throttled = [w for w in analysis.quality.warnings if w.startswith("throttled")]
    if throttled:
        yield _alert("Throttled", analysis.run, "; ".join(throttled), "WARN")
    missing = [findings.trial_line(t) for t in analysis.trials if t.status not in SETTLED]
    if missing:
        yield _alert("Trials are missing", analysis.run, "; ".join(missing), "ERROR")


def regressions(comparisons: Sequence[Comparison]) -> Iterator[Alert]:
    """An alert for each run that is slower than the base. A difference within the noise raises none."""
    for one in comparisons:
        found = list(_slower(one)) if one.comparable else []
        if found:
            base, other = versus.run_names(one)
            said = f"Throughput of {other} over {base}: {'; '.join(found)}."
            yield _alert("Slower than before", one.other, said, "WARN")


def _slower(comparison: Comparison) -> Iterator[str]:
    """World sizes and cases at which the other run is distinguishably slower, each with its ratio."""
    for point in comparison.points:
        if point.distinguishable and point.ratio is not None and point.ratio.value < 1:
            yield f"{text.quantity(point.ratio)} at {text.ranks(point.world_size)}"
    for case in comparison.cases:
        if case.distinguishable and case.ratio is not None and case.ratio.value < 1:
            where = f"{text.ranks(case.world_size)}, {cases.compared_setting(case)}, batch {case.batch}"
            yield f"{text.quantity(case.ratio)} at {where}"


def _alert(what: str, run: RunInfo, said: str, level: str) -> Alert:
    title = plain(f"{what}: {run.model} on {run.topology}")[:TITLE_MAX]
    return {"title": title, "text": plain(said), "level": level}
