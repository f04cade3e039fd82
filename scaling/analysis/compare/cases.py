"""Cases that two runs have in common. Pure."""

from __future__ import annotations

from scaling.analysis.decompose.cost import usd_per_million
from scaling.analysis.results import Analysis, CaseComparison, InferenceCase, TrainingCase, ratio_of
from scaling.analysis.statistics.rounds import among

Case = InferenceCase | TrainingCase
Prices = tuple[float | None, float | None]
"""USD a GPU-hour, of the base and of the other."""


def compared(base: Analysis, other: Analysis, prices: Prices) -> tuple[CaseComparison, ...]:
    """Cases of both runs, measured in one of them at least."""
    pairs = [(a, b) for a, b in shared(base, other) if a.samples_per_s or b.samples_per_s]
    found = []
    for row, beside in pairs:
        ratio = ratio_of(beside.samples_per_s, row.samples_per_s)
        found.append(
            CaseComparison(
                world_size=row.world_size,
                batch=row.batch,
                setting=setting_of(row),
                samples_per_s=(row.samples_per_s, beside.samples_per_s),
                ratio=ratio,
                distinguishable=ratio is not None and among(ratio, len(pairs)).differs_from(1),
                usd_per_million_samples=tuple(
                    usd_per_million(one.samples_per_s, row.world_size, price)
                    for one, price in zip((row, beside), prices, strict=True)
                ),
            )
        )
    return tuple(found)


def shared(base: Analysis, other: Analysis) -> list[tuple[Case, Case]]:
    """Each case of the base beside the same one of the other."""
    others = {key_of(row): row for row in cases_of(other)}
    return [(row, others[key_of(row)]) for row in cases_of(base) if key_of(row) in others]


def cases_of(run: Analysis) -> list[Case]:
    """All cases of a run."""
    return [*run.inference, *run.training]


def key_of(row: Case) -> tuple[object, ...]:
    """What a case is, its throughput aside."""
    return (type(row), row.world_size, row.batch, *setting_of(row).items())


def setting_of(row: Case) -> dict[str, str | int | bool]:
    """The settings of a case beside its batch."""
    names = (
        ("precision", "autocast", "compile")
        if isinstance(row, InferenceCase)
        else ("precision", "checkpointing", "accumulation_steps")
    )
    return {name: getattr(row, name) for name in names}
