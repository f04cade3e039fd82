"""Self-test and verification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scaling.analysis.results import Measured, SelfTest, SelfTestCase, Verification
from scaling.report.model import Document, Line, Lines, Section, named

_VERDICTS = {
    "held": "held",
    "not_held": "did not hold",
    "not_distinguishable": "not distinguishable from the present settings",
}
_WIDTH = 9


def case_lines(case: SelfTestCase) -> Iterator[str]:
    """One case as it ends, in the columns that `selftest_document` names."""
    cost = "" if case.expected_ms is None else f"{case.expected_ms:8.1f} ms"
    found = "" if case.attributed_ms is None else f"{case.attributed_ms:8.1f} ms"
    error = "" if case.error is None else f"{case.error:+7.1%}"
    mark = "hit " if case.hit else "MISS"
    yield f"{mark} {case.name:<25} {case.first:<15} {cost:>11} {found:>11} {error:>7}"
    if case.contended and not case.hit:
        yield "     other programs ran beside it (contended), so that it may be rightly undecided"
    if case.false_alarms:
        yield f"     false alarm: {', '.join(case.false_alarms)}"


def selftest_document(found: SelfTest, folder: Path) -> Document:
    """What the columns of the cases are, then the summary."""
    hits = sum(case.hit for case in found.cases)
    error = "unknown" if found.attribution_error is None else f"{found.attribution_error:.1%}"
    said = (
        "   injected                  first verdict     costs, by   attributed   error",
        "                                             arithmetic",
        f"{hits} of {len(found.cases)} hit ({found.hit_rate:.0%} of those planned), {found.false_alarms} false "
        f"alarms, median attribution error {error}: {'passed' if found.passed else 'NOT PASSED'}",
    )
    return Document(
        title="Self-test",
        sections=(Section(title="", blocks=(_comments(*said),)),),
        closing=(Line(name="runs", text=str(folder)),),
    )


def verification_document(found: Verification, folder: Path) -> Document:
    """The remedy, the predicted and the measured gain, and whether the prediction held."""
    remedy = Lines(
        items=(
            Line(name="remedy", text=f"{found.remedy}   (against {found.cause} at {found.world_size} ranks)"),
            Line(text=found.code),
        ),
        look="conditions",
        whole=True,
        name_width=_WIDTH,
    )
    gains = named(
        ("predicted", _gain(found.predicted_gain)),
        ("measured", f"{_gain(found.measured_gain)}   in {found.how}"),
        ("A/A", f"{_gain(found.aa_floor)}   the present settings against themselves"),
        name_width=_WIDTH + 2,
    )
    blocks = (remedy, gains, _comments(_VERDICTS[found.verdict]))
    return Document(
        title=f"Verification of {found.remedy}",
        sections=(Section(title="", blocks=blocks),),
        closing=(Line(name="runs", text=str(folder)),),
    )


def _comments(*said: str) -> Lines:
    return Lines(items=tuple(Line(text=line) for line in said), look="conditions", whole=True)


def _gain(gain: Measured | None) -> str:
    if gain is None:
        return "not known"
    if gain.low is None or gain.high is None:
        return f"x{gain.value:.3f}, without an interval"
    return f"x{gain.value:.3f}  [{gain.low:.3f}, {gain.high:.3f}]"
