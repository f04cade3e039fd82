"""Cases as tables and sentences: inference, training settings, the largest batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis import results
from scaling.plain import plain
from scaling.report import text
from scaling.report.model import Column, Table, tabulated
from scaling.report.strategies import slower_lines
from scaling.settings.cases import LATE
from scaling.settings.plan import SETTLED
from scaling.units import format_bytes

KNEE = "*"
KNEE_NOTE = f"{KNEE} the knee: the smallest batch with 95 % of the best throughput of its setting"
Row = results.InferenceCase | results.TrainingCase
FIRST: tuple[Column[Row], ...] = (
    ("ranks", "", lambda r: str(r.world_size)),
    ("precision", "", lambda r: r.precision),
)
LAST: tuple[Column[Row], ...] = (
    ("samples", "1/s", lambda r: text.cell(r.samples_per_s)),
    ("efficiency", "%", lambda r: text.cell(r.efficiency, 100)),
    ("peak", "a rank", lambda r: memory(r.peak_bytes)),
    ("status", "", lambda r: text.status_name(r.status)),
)


def _batch(row: Row) -> str:
    return f"{row.batch}{KNEE if row.knee else ''}"


def mode(row: results.InferenceCase) -> str:
    """`eager` or `compiled`, and whether autocast gives the 16 bits."""
    return f"{'compiled' if row.compile else 'eager'}{', autocast' if row.autocast else ''}"


INFERENCE: tuple[Column[results.InferenceCase], ...] = (
    *FIRST,
    ("mode", "", mode),
    ("batch", "", _batch),
    ("p50", "ms", lambda r: text.cell(r.latency_ms.p50)),
    ("p90", "ms", lambda r: text.value_of(r.latency_ms.p90)),
    ("p99", "ms", lambda r: text.value_of(r.latency_ms.p99)),
    *LAST,
)
INFERENCE_NOTE = (
    "latency of one batch, host to answer, over the requests of all ranks; - where too few for a percentile; "
    f"samples: all ranks together. {KNEE_NOTE}"
)
TRAINING: tuple[Column[results.TrainingCase], ...] = (
    *FIRST,
    ("checkpointing", "", lambda r: "yes" if r.checkpointing else "no"),
    ("micro-steps", "", lambda r: str(r.accumulation_steps)),
    ("batch", "", _batch),
    ("step", "ms", lambda r: text.cell(r.step_ms)),
    ("exposed", "ms", lambda r: text.cell(r.exposed_ms)),
    *LAST,
)
TRAINING_NOTE = (
    "batch: samples per rank and optimizer step, all micro-steps together; exposed: wait for other ranks per step. "
    f"{KNEE_NOTE}"
)


def inference_table(cases: Sequence[results.InferenceCase]) -> Table:
    """A row for each case of inference; the status is left out where all are done."""
    return tabulated(cases, INFERENCE, {"status": _unfinished(cases)}, label="Inference", note=INFERENCE_NOTE)


def training_table(cases: Sequence[results.TrainingCase]) -> Table:
    """A row for each training setting; checkpointing, micro-steps and status are columns where they say something."""
    shown = {
        "checkpointing": any(r.checkpointing for r in cases),
        "micro-steps": any(r.accumulation_steps > 1 for r in cases),
        "status": _unfinished(cases),
    }
    return tabulated(cases, TRAINING, shown, label="Training settings", note=TRAINING_NOTE)


def _unfinished(cases: Sequence[Row]) -> bool:
    return any(r.status != "done" for r in cases)


def memory(size: int | None) -> str:
    """`1.2 GiB`, `-` for None."""
    return text.NONE if size is None else format_bytes(size)


def setting(row: Row | results.LargestBatch) -> str:
    """The settings of a row without its batch and ranks: `bf16, eager, autocast`."""
    words = [plain(row.precision)]
    if isinstance(row, results.InferenceCase):
        return ", ".join([*words, mode(row)])
    if isinstance(row, results.LargestBatch):
        words += ["autocast"] * row.autocast + ["compiled"] * row.compile
    words += ["checkpointing"] * row.checkpointing
    return ", ".join(words + _micro_steps(row.accumulation_steps))


def _micro_steps(many: int) -> list[str]:
    return [text.count(many, "micro-step")] if many > 1 else []


def compared_setting(case: results.CaseComparison) -> str:
    """The settings of a case that two runs have: `bf16, autocast`."""
    flags = [name for name in ("autocast", "compile", "checkpointing") if case.setting.get(name)]
    micro_steps = _micro_steps(int(case.setting.get("accumulation_steps", 1)))
    return ", ".join([plain(str(case.setting["precision"])), *flags, *micro_steps])


def comparison_table(comparison: results.Comparison) -> Table:
    """Samples a second of each case in both runs, and their ratio."""
    columns: list[Column[results.CaseComparison]] = [
        ("ranks", "", lambda c: str(c.world_size)),
        ("setting", "", compared_setting),
        ("batch", "", lambda c: str(c.batch)),
        ("base", "1/s", lambda c: text.cell(c.samples_per_s[0])),
        ("other", "1/s", lambda c: text.cell(c.samples_per_s[1])),
        ("ratio", "", lambda c: text.cell(c.ratio)),
    ]
    if any(usd for case in comparison.cases for usd in case.usd_per_million_samples):
        columns.append(("base", "USD/M", lambda c: text.cell(c.usd_per_million_samples[0])))
        columns.append(("other", "USD/M", lambda c: text.cell(c.usd_per_million_samples[1])))
    columns.append(("", "", lambda c: text.undistinguished(c.ratio, distinguishable=c.distinguishable)))
    return tabulated(comparison.cases, columns, label="Cases")


def comparison_answer(comparison: results.Comparison, names: tuple[str, str]) -> str:
    """The range of the ratios over all cases, as a sentence."""
    ratios = [case.ratio.value for case in comparison.cases if case.ratio is not None]
    if not ratios:
        return "The two runs have no case in common that was measured in both."
    clear = sum(case.distinguishable for case in comparison.cases)
    low, high = min(ratios), max(ratios)
    between = f"{text.number(low)}" if len(ratios) == 1 else f"{text.number(low)} to {text.number(high)}"
    return (
        f"{names[1]} gives {between} times the samples a second of {names[0]} in {text.count(len(ratios), 'case')}, "
        f"{clear} of them distinguishable."
    )


def failures(analysis: results.Analysis) -> Iterator[str]:
    """Cases that were not measured, each with its error."""
    rows: list[Row] = [*analysis.inference, *analysis.training]
    for row in rows:
        if row.status not in SETTLED:
            error = f": {plain(row.error)}" if row.error else ""
            where = f"{text.ranks(row.world_size)}, {setting(row)}, batch {row.batch}"
            yield f"{where}: {text.status_name(row.status)}{error}"


def largest_line(largest: results.LargestBatch) -> str:
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


def _limit(largest: results.LargestBatch) -> str:
    return "" if largest.limit_bytes is None else f" in {format_bytes(largest.limit_bytes)}"


def answer(analysis: results.Analysis) -> str:
    """The fastest case at the largest world size, the knee, and the largest batch."""
    rows: list[Row] = [*analysis.inference, *analysis.training]
    measured = [r for r in rows if r.samples_per_s is not None]
    if not measured:
        return "Nothing could be measured."
    n = max(r.world_size for r in measured)
    here = [r for r in measured if r.world_size == n]
    best = max(here, key=lambda r: r.samples_per_s.value if r.samples_per_s else 0.0)
    sentences = [
        f"The most samples at {text.ranks(n)} are {text.quantity(best.samples_per_s)} a second, "
        f"in {setting(best)} at batch {best.batch}"
    ]
    if isinstance(best, results.InferenceCase) and best.latency_ms.p50 is not None:
        sentences[0] += f", where one batch takes {text.quantity(best.latency_ms.p50, 'ms')} in the median"
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
    if missing := len(list(failures(analysis))):
        sentences.append(f"{text.count(missing, 'case')} could not be measured")
    return " ".join(map(text.sentence, sentences))
