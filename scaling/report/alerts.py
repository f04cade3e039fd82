"""When W&B is to call somebody: a regression, throttling, trials that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.results import Analysis, Comparison, RunInfo
from scaling.report import findings, text, versus

TITLE_MAX = 63
"""Characters that W&B takes."""

Alert = dict[str, str]


def alerts(analysis: Analysis) -> Iterator[Alert]:
    """Of one run, each as {title, text, level}."""
    throttled = [w for w in analysis.quality.warnings if w.startswith("throttled")]
    if throttled:
        yield _alert("Throttled", analysis.run, "; ".join(throttled), "WARN")
    missing = [findings.trial_line(t) for t in analysis.trials if t.status != "done"]
    if missing:
        yield _alert("Trials are missing", analysis.run, "; ".join(missing), "ERROR")


def regressions(comparisons: Sequence[Comparison]) -> Iterator[Alert]:
    """Of runs that are slower than the base; a difference inside the noise is none."""
    for one in comparisons:
        if one.comparable and any(p.distinguishable and p.ratio and p.ratio.value < 1 for p in one.points):
            yield _alert("Slower than before", one.other, versus.answer(one), "WARN")


def _alert(what: str, run: RunInfo, said: str, level: str) -> Alert:
    title = text.plain(f"{what}: {run.model} on {run.topology}")[:TITLE_MAX]
    return {"title": title, "text": text.plain(said), "level": level}
