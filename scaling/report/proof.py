"""Self-test and verification as text."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from scaling.analysis.results import Measured, SelfTest, SelfTestCase, Verification


def print_case(console: Console, case: SelfTestCase) -> None:
    """One line a case, as it ends."""
    cost = "" if case.expected_ms is None else f"{case.expected_ms:8.1f} ms"
    found = "" if case.attributed_ms is None else f"{case.attributed_ms:8.1f} ms"
    error = "" if case.error is None else f"{case.error:+7.1%}"
    mark = "hit " if case.hit else "MISS"
    _line(console, f"{mark} {case.name:<25} {case.first:<15} {cost:>11} {found:>11} {error:>7}")
    if case.false_alarms:
        _line(console, f"     false alarm: {', '.join(case.false_alarms)}")


def print_selftest(console: Console, found: SelfTest, folder: Path) -> None:
    """The summary below the cases: first what every column was."""
    _line(console, "#    injected                  first verdict     costs, by   attributed   error")
    _line(console, "#                                              arithmetic")
    hits = sum(case.hit for case in found.cases)
    error = "unknown" if found.attribution_error is None else f"{found.attribution_error:.1%}"
    _line(
        console,
        f"# {hits} of {len(found.cases)} hit ({found.hit_rate:.0%} of those planned), {found.false_alarms} false "
        f"alarms, median attribution error {error}: {'passed' if found.passed else 'NOT PASSED'}",
    )
    _line(console, f"# runs  {folder}")


def print_verification(console: Console, found: Verification, folder: Path) -> None:
    """What was tried, what was promised, what came, and the folder that holds it."""
    said = {
        "held": "held",
        "not_held": "did not hold",
        "not_distinguishable": "not distinguishable from the present settings",
    }[found.verdict]
    _line(console, f"# remedy     {found.remedy}   (against {found.cause} at {found.world_size} ranks)")
    _line(console, f"#            {found.code}")
    _line(console, f"  predicted  {_gain(found.predicted_gain)}")
    _line(console, f"  measured   {_gain(found.measured_gain)}   in {found.how}")
    _line(console, f"  A/A        {_gain(found.aa_floor)}   the present settings against themselves")
    _line(console, f"# {said}")
    _line(console, f"# runs       {folder}")


def _gain(gain: Measured | None) -> str:
    if gain is None:
        return "not known"
    if gain.low is None or gain.high is None:
        return f"x{gain.value:.3f}, without an interval"
    return f"x{gain.value:.3f}  [{gain.low:.3f}, {gain.high:.3f}]"


def _line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
