"""What the doctor found, its problems and their remedies last; self-test and verification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scaling.analysis import results
from scaling.analysis.results import doctor
from scaling.report import cases, findings, text
from scaling.report.model import (
    Column,
    Document,
    Line,
    Lines,
    Section,
    Table,
    lines,
    named,
    section,
    tabulated,
)
from scaling.units import format_bytes, format_duration, significant

PAIRS_SHOWN = 12
NAME_WIDTH = 9


def document(checkup: doctor.Diagnosis, folder: Path | str) -> Document:
    """All of it; `folder` keeps the records."""
    return Document(
        title=f"Checkup of {checkup.run.model} on {checkup.run.topology}",
        sections=tuple(_sections(checkup)),
        closing=(Line(name="kept", text=str(folder)),),
    )


def _sections(checkup: doctor.Diagnosis) -> Iterator[Section]:
    run = checkup.run
    ranks = f"{text.ranks(len(checkup.ranks))}, {run.backend} on {run.device}"
    checked = named(
        ("checked", f"{run.model} ({run.precision}) on {run.topology}: {ranks}"),
        ("took", format_duration(run.duration_s)),
        look="conditions",
    )
    yield section("", checked)
    if checkup.roofline is not None:
        yield from _roofline(checkup.roofline)
    if checkup.parity is not None:
        yield _parity(checkup.parity)
    compare = (
        "a pair alone is no collective; scaling import nccl-tests LOG compares yours (scaling trace --how)"
    )
    others = lines(*checkup.others, *(compare,) * bool(checkup.others), look="prose")
    slowest = sorted(checkup.pairs, key=lambda p: p.bandwidth_gbit_s.value)[:PAIRS_SHOWN]
    pairs = tabulated(slowest, PAIRS, label="Pairs of ranks")
    yield section("between pairs of ranks, one pair at a time", pairs, others)
    yield section(
        "memory of the rank that holds most, by phase of a step",
        tabulated(checkup.memory, MEMORY, label="Memory"),
    )
    yield section("differs between ranks", lines(*_differences(checkup), look="prose"))
    problems = Lines(items=tuple(_problems(checkup)), look="facts", name_width=NAME_WIDTH)
    yield section(f"problems: {_count(checkup)}", problems, title_alone=True)


def _problems(checkup: doctor.Diagnosis) -> Iterator[Line]:
    for problem in checkup.problems:
        where = f"rank {problem.rank}: " if problem.rank is not None else ""
        wrong = problem.severity == doctor.ERROR
        what = f"{where}{problem.what}"
        yield Line(name=problem.severity, text=what, tone="alarm" if wrong else "warning")
        yield Line(name="remedy", text=problem.remedy, tone="good")


def _count(checkup: doctor.Diagnosis) -> str:
    errors = sum(p.severity == doctor.ERROR for p in checkup.problems)
    if not checkup.problems:
        return "none"
    return f"{text.count(errors, 'error')}, {text.count(len(checkup.problems) - errors, 'warning')}"


def _differences(checkup: doctor.Diagnosis) -> Iterator[str]:
    """Facts that differ and that no problem is about."""
    for item in checkup.differences:
        if not any(p.what.startswith(f"{item.key} differs") for p in checkup.problems):
            yield f"{item.key}: {'; '.join(f'{v.value} on {_ranks(v.ranks)}' for v in item.values)}"


def _roofline(use: results.RooflineResult) -> Iterator[Section]:
    """What the device can do at best, and what of it a step without DDP uses."""
    ceilings = Table(
        columns=(("work", ""), ("size", ""), ("best", ""), ("unit", "")),
        rows=tuple(map(_ceiling, use.ceilings)),
        label="Ceilings",
    )
    title = f"ceilings of rank {use.rank} ({use.device}), the best of some repetitions"
    yield section(title, ceilings)
    work = (
        f"{significant(use.flops / 1e9, 4)} GFLOP, {format_bytes(use.bytes)} read and written, "
        f"{use.operators} operators; "
        f"{significant(use.achieved_flop_s.value / 1e9, 4)} GFLOP/s; {findings.use_line(use.mfu, use.hfu, use)}"
    )
    bounds = Table(
        columns=(("bound", ""), ("at least", "ms")),
        rows=tuple((k.replace("_", " "), _ms(v)) for k, v in use.least_ms.items() if v.value),
        label="Bounds",
    )
    at = f"batch {use.batch}, {use.precision}"
    title = f"a step without DDP ({at}): {text.quantity(use.step_ms, 'ms')}, bound: {use.bound}"
    yield section(title, lines(work, look="prose"), bounds)


def _ceiling(ceiling: results.CeilingResult) -> tuple[str, ...]:
    name = ceiling.name.replace("_", " ")
    if ceiling.unit == "1/s":
        return (name, "", significant(ceiling.best.value / 1e6), "M/s")
    size = format_bytes(ceiling.size) if ceiling.unit == "bytes/s" else str(ceiling.size or "")
    return (name, size, significant(ceiling.best.value / 1e9, 4), f"G{ceiling.unit}")


def _ms(value: results.Measured) -> str:
    return significant(value.value)


PARITY: tuple[Column[doctor.Divergence], ...] = (
    ("format", "", lambda row: row.precision),
    ("ranks", "", lambda row: _ranks(row.ranks)),
    ("gradient", "step 1", lambda row: _error(row.gradient_error)),
    ("weights", "last", lambda row: _error(row.weight_error)),
    ("loss", "last", lambda row: _error(row.loss_error)),
    ("same", "bits", lambda row: "yes" if row.repeatable else "NO"),
    ("inf/0", "", lambda row: f"{row.not_finite}/{row.flushed}"),
    ("step", "ms", lambda row: text.NONE if row.step_ms is None else _ms(row.step_ms)),
    ("speed", "/ fp32", lambda row: text.NONE if row.speedup is None else f"{row.speedup.value:.2f}"),
)


def _parity(parity: doctor.ParityTable) -> Section:
    apart = lines(
        *(
            f"{row.precision}: {_ranks(row.ranks)} on {row.device}: first differs at {row.parts_at}"
            for row in parity.table
            if row.parts_at
        ),
        look="prose",
    )
    note = "gradient, weights, loss: |x - float64| / |float64|; inf: elements that are not finite, 0: flushed to zero"
    table = tabulated(parity.table, PARITY, label="Parity")
    title = f"parity: {parity.steps} seeded steps against float64"
    return section(title, table, apart, lines(note, look="note"))


def _error(value: float | None) -> str:
    return text.NONE if value is None else f"{value:.1e}"


def _ranks(ranks: Sequence[int]) -> str:
    return text.ranges(ranks) or "file"


PAIRS: tuple[Column[doctor.PairBandwidth], ...] = (
    ("ranks", "", lambda p: f"{p.first}-{p.second}"),
    ("over", "", lambda p: "host" if p.same_host else "network"),
    ("peer", "access", lambda p: text.NONE if p.peer_access is None else "yes" if p.peer_access else "no"),
    ("message", "", lambda p: format_bytes(p.bytes)),
    ("rate", "Gbit/s", lambda p: significant(p.bandwidth_gbit_s.value)),
)
MEMORY: tuple[Column[doctor.PhasePeak], ...] = (
    ("after", "", lambda p: p.phase),
    ("rank", "", lambda p: str(p.rank)),
    ("host", "", lambda p: format_bytes(p.host_bytes)),
    ("device", "peak", lambda p: cases.memory(p.device_peak_bytes)),
)


_VERDICTS = {
    "held": "held",
    "not_held": "did not hold",
    "not_distinguishable": "not distinguishable from the present settings",
}


def case_lines(case: results.SelfTestCase) -> Iterator[str]:
    """One case as it ends, in the columns that `selftest_document` names."""
    cost = "" if case.expected_ms is None else f"{case.expected_ms:8.1f} ms"
    attributed = "" if case.attributed_ms is None else f"{case.attributed_ms:8.1f} ms"
    error = "" if case.error is None else f"{case.error:+7.1%}"
    mark = "hit " if case.hit else "MISS"
    yield f"{mark} {case.name:<25} {case.first:<15} {cost:>11} {attributed:>11} {error:>7}"
    if case.contended and not case.hit:
        yield "     other programs ran at the same time (contended), so that undecided may be right"
    if case.false_alarms:
        yield f"     false alarm: {', '.join(case.false_alarms)}"


def selftest_document(test: results.SelfTest, folder: Path) -> Document:
    """What the columns of the cases are, then the summary."""
    hits = sum(case.hit for case in test.cases)
    error = "unknown" if test.attribution_error is None else f"{test.attribution_error:.1%}"
    comments = (
        "   injected                  first verdict     costs, by   attributed   error",
        "                                             arithmetic",
        f"{hits} of {len(test.cases)} hit ({test.hit_rate:.0%} of those planned), {test.false_alarms} false "
        f"alarms, median attribution error {error}: {'passed' if test.passed else 'NOT PASSED'}",
    )
    return _document("Self-test", _comments(*comments), folder=folder)


def verification_document(check: results.Verification, folder: Path) -> Document:
    """The remedy, the predicted and the measured gain, and whether the prediction held."""
    remedy = Lines(
        items=(
            Line(name="remedy", text=f"{check.remedy}   (against {check.cause} at {check.world_size} ranks)"),
            Line(text=check.code),
        ),
        look="conditions",
        whole=True,
        name_width=NAME_WIDTH,
    )
    gains = named(
        ("predicted", _gain(check.predicted_gain)),
        ("measured", f"{_gain(check.measured_gain)}   in {check.how}"),
        ("A/A", f"{_gain(check.aa_floor)}   the present settings against themselves"),
        name_width=NAME_WIDTH + 2,
    )
    verdict = _comments(_VERDICTS[check.verdict])
    return _document(f"Verification of {check.remedy}", remedy, gains, verdict, folder=folder)


def _document(title: str, *blocks: Lines, folder: Path) -> Document:
    """What several runs showed; `folder` keeps them."""
    runs = Line(name="runs", text=str(folder))
    return Document(title=title, sections=(section("", *blocks),), closing=(runs,))


def _comments(*texts: str) -> Lines:
    return Lines(items=tuple(Line(text=line) for line in texts), look="conditions", whole=True)


def _gain(gain: results.Measured | None) -> str:
    if gain is None:
        return "not known"
    if gain.low is None or gain.high is None:
        return f"x{gain.value:.3f}, without an interval"
    return f"x{gain.value:.3f}  [{gain.low:.3f}, {gain.high:.3f}]"
