"""Cases as tables and sentences: inference, training settings, the largest batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.results import (
    Analysis,
    CaseComparison,
    Comparison,
    InferenceCase,
    LargestBatch,
    TrainingCase,
)
from scaling.plain import plain
from scaling.report.model import Columns, Table
from scaling.report.strategies import slower_lines
from scaling.report.text import (
    NONE,
    cell,
    count,
    number,
    quantity,
    ranks,
    sentence,
    status_name,
    undistinguished,
    value_of,
)
from scaling.settings.batch_search import LATE
from scaling.settings.plan import SETTLED
from scaling.units import format_bytes

KNEE = "*"
KNEE_NOTE = f"{KNEE} the knee: the smallest batch with 95 % of the best throughput of its setting"
FIRST: Columns = (("ranks", ""), ("precision", ""))
LAST: Columns = (("samples", "1/s"), ("efficiency", "%"), ("peak", "a rank"), ("status", ""))
INFERENCE: Columns = (*FIRST, ("mode", ""), ("batch", ""), ("p50", "ms"), ("p90", "ms"), ("p99", "ms"), *LAST)
INFERENCE_NOTE = (
    "latency of one batch, host to answer, over the requests of all ranks; - where too few for a percentile; "
    f"samples: all ranks together. {KNEE_NOTE}"
)
TRAINING: Columns = (
    *FIRST,
    ("checkpointing", ""),
    ("micro-steps", ""),
    ("batch", ""),
    ("step", "ms"),
    ("exposed", "ms"),
    *LAST,
)
TRAINING_NOTE = (
    "batch: samples per rank and optimizer step, all micro-steps together; exposed: wait for other ranks per step. "
    f"{KNEE_NOTE}"
)


def inference_table(cases: Sequence[InferenceCase]) -> Table:
    """A row for each case of inference."""
    rows = [
        (
            mode(r),
            _batch(r),
            cell(r.latency_ms.p50),
            value_of(r.latency_ms.p90),
            value_of(r.latency_ms.p99),
        )
        for r in cases
    ]
    return _table(INFERENCE, cases, rows, "Inference", INFERENCE_NOTE)


def training_table(cases: Sequence[TrainingCase]) -> Table:
    """A row for each training setting; checkpointing and micro-steps are columns where some row has them."""
    any_checkpointed = any(r.checkpointing for r in cases)
    micro = any(r.accumulation_steps > 1 for r in cases)
    rows = [
        (
            *((("yes" if r.checkpointing else "no"),) if any_checkpointed else ()),
            *((str(r.accumulation_steps),) if micro else ()),
            _batch(r),
            cell(r.step_ms),
            cell(r.exposed_ms),
        )
        for r in cases
    ]
    shown = {"checkpointing": any_checkpointed, "micro-steps": micro}
    columns = tuple(column for column in TRAINING if shown.get(column[0], True))
    return _table(columns, cases, rows, "Training settings", TRAINING_NOTE)


def _table(
    columns: Columns,
    cases: Sequence[InferenceCase | TrainingCase],
    middles: Sequence[tuple[str, ...]],
    label: str,
    note: str,
) -> Table:
    """`middles`: the cells between the first and the last columns. The status is left out where all are done."""
    shown = len(columns) - all(r.status == "done" for r in cases)
    rows = tuple(
        (
            str(r.world_size),
            r.precision,
            *middle,
            cell(r.samples_per_s),
            cell(r.efficiency, 100),
            memory(r.peak_bytes),
            status_name(r.status),
        )[:shown]
        for r, middle in zip(cases, middles, strict=True)
    )
    return Table(columns=columns[:shown], rows=rows, label=label, note=note)


def _batch(row: InferenceCase | TrainingCase) -> str:
    return f"{row.batch}{KNEE if row.knee else ''}"


def mode(row: InferenceCase) -> str:
    """`eager` or `compiled`, and whether autocast gives the 16 bits."""
    words = ["compiled" if row.compile else "eager"]
    if row.autocast:
        words.append("autocast")
    return ", ".join(words)


def memory(size: int | None) -> str:
    """`1.2 GiB`, `-` for None."""
    return NONE if size is None else format_bytes(size)


def setting(row: InferenceCase | TrainingCase | LargestBatch) -> str:
    """The settings of a row without its batch and ranks: `bf16, eager, autocast`."""
    words = [plain(row.precision)]
    if isinstance(row, InferenceCase):
        return ", ".join([*words, mode(row)])
    if isinstance(row, LargestBatch) and row.autocast:
        words.append("autocast")
    if isinstance(row, LargestBatch) and row.compile:
        words.append("compiled")
    if row.checkpointing:
        words.append("checkpointing")
    if row.accumulation_steps > 1:
        words.append(count(row.accumulation_steps, "micro-step"))
    return ", ".join(words)


def compared_setting(case: CaseComparison) -> str:
    """The settings of a case that two runs have: `bf16, autocast`."""
    flags = [name for name in ("autocast", "compile", "checkpointing") if case.setting.get(name)]
    micro = int(case.setting.get("accumulation_steps", 1))
    words = [plain(str(case.setting["precision"])), *flags]
    return ", ".join([*words, *([count(micro, "micro-step")] if micro > 1 else [])])


def comparison_table(comparison: Comparison) -> Table:
    """Samples a second of each case in both runs, and their ratio."""
    priced = any(usd for case in comparison.cases for usd in case.usd_per_million_samples)
    columns = (
        ("ranks", ""),
        ("setting", ""),
        ("batch", ""),
        ("base", "1/s"),
        ("other", "1/s"),
        ("ratio", ""),
        *((("base", "USD/M"), ("other", "USD/M")) if priced else ()),
        ("", ""),
    )
    rows = tuple(
        (
            str(case.world_size),
            compared_setting(case),
            str(case.batch),
            *map(cell, case.samples_per_s),
            cell(case.ratio),
            *(map(cell, case.usd_per_million_samples) if priced else ()),
            undistinguished(case.ratio, distinguishable=case.distinguishable),
        )
        for case in comparison.cases
    )
    return Table(columns=columns, rows=rows, label="Cases")


def comparison_answer(comparison: Comparison, names: tuple[str, str]) -> str:
    """The range of the ratios over all cases, as a sentence."""
    ratios = [case.ratio.value for case in comparison.cases if case.ratio is not None]
    if not ratios:
        return "The two runs have no case in common that was measured in both."
    clear = sum(case.distinguishable for case in comparison.cases)
    low, high = min(ratios), max(ratios)
    between = f"{number(low)}" if len(ratios) == 1 else f"{number(low)} to {number(high)}"
    return (
        f"{names[1]} gives {between} times the samples a second of {names[0]} in {count(len(ratios), 'case')}, "
        f"{clear} of them distinguishable."
    )


def failures(analysis: Analysis) -> Iterator[str]:
    """Cases that were not measured, each with its error."""
    rows: list[InferenceCase | TrainingCase] = [*analysis.inference, *analysis.training]
    for row in rows:
        if row.status not in SETTLED:
            error = f": {plain(row.error)}" if row.error else ""
            yield f"{ranks(row.world_size)}, {setting(row)}, batch {row.batch}: {status_name(row.status)}{error}"


def largest_line(largest: LargestBatch) -> str:
    """The largest batch that fits, how that was proved, and the smallest that is known not to fit."""
    if not largest.found:
        return f"{setting(largest)}: not one sample fits{_limit(largest)}"
    too_large = min((t.batch for t in largest.tries if t.status in ("oom", "killed")), default=None)
    beyond = "nothing larger was too much" if too_large is None else f"{too_large} does not"
    if any(t.status == LATE for t in largest.tries):
        beyond = (
            f"{beyond if too_large else 'a larger one may'}; the search's time was over before more was tried"
        )
    proof = (
        "not proved in fresh processes"
        if largest.proved is None
        else f"{largest.proved} proved in fresh processes with a margin of 3 % of memory"
    )
    return f"{setting(largest)}: {largest.found} per rank and step fit{_limit(largest)}, {beyond}; {proof}"


def _limit(largest: LargestBatch) -> str:
    return "" if largest.limit_bytes is None else f" in {format_bytes(largest.limit_bytes)}"


def answer(analysis: Analysis) -> str:
    """The fastest case at the largest world size, the knee, and the largest batch."""
    rows: list[InferenceCase | TrainingCase] = [*analysis.inference, *analysis.training]
    measured = [r for r in rows if r.samples_per_s is not None]
    if not measured:
        return "Nothing could be measured."
    n = max(r.world_size for r in measured)
    here = [r for r in measured if r.world_size == n]
    best = max(here, key=lambda r: r.samples_per_s.value if r.samples_per_s else 0.0)
    sentences = [
        f"The most samples at {ranks(n)} are {quantity(best.samples_per_s)} a second, "
        f"in {setting(best)} at batch {best.batch}"
    ]
    if isinstance(best, InferenceCase) and best.latency_ms.p50 is not None:
        sentences[0] += f", where one batch takes {quantity(best.latency_ms.p50, 'ms')} in the median"
    knee = next((r for r in here if r.knee and setting(r) == setting(best)), None)
    batches = {r.batch for r in here if setting(r) == setting(best)}
    if knee is not None and knee is not best:
        sentences.append(f"Batch {knee.batch} gives 95 % of that or more")
    elif knee is None and len(batches) > 1:
        sentences.append("It still grows there: no knee was reached")
    alike = len({setting(r) for r in measured}) == 1
    named = [f"batch {r.batch}" if alike else f"{setting(r)} at batch {r.batch}" for r in rows]
    speedups = [r.efficiency * r.world_size if r.efficiency and r.world_size > 1 else None for r in rows]
    sizes = [r.world_size for r in rows]
    sentences += slower_lines(list(zip(sizes, named, speedups, strict=True)))
    sentences += [largest_line(largest) for largest in analysis.largest_batch]
    missing = sum(1 for _ in failures(analysis))
    if missing:
        sentences.append(f"{count(missing, 'case')} could not be measured")
    return " ".join(map(sentence, sentences))
