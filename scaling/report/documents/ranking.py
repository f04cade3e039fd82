"""All meshes of one world size, ranked. Every figure is simulated, and each part says so."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.results.prediction import MeshLeftOut, RankedMesh, RankedMeshes
from scaling.report.documents.simulation import GB, backtest
from scaling.report.model import Document, Section, Table, heads, lines
from scaling.report.text import NONE, quantity, ranks, sentence, value_of


def document(found: RankedMeshes) -> Document:
    """Which mesh comes first, why the others are slower, and how far that may be off."""
    return Document(
        title=f"{found.model} on {found.topology}, all meshes, SIMULATED",
        answer=_answer(found),
        sections=tuple(_sections(found)),
    )


def _answer(found: RankedMeshes) -> str:
    if not found.ranked:
        why = found.left_out[0].why if found.left_out else "there is no mesh"
        return sentence(f"simulated: no mesh gave a step; {why}")
    first, *others = found.ranked
    said = f"simulated: of {len(found.ranked)} meshes of {ranks(first.world_size)} {_named(first)} is fastest"
    near = [one for one in others if not any(o.apart for o in others[: others.index(one) + 1])]
    if near:
        said += f"; the ranges of {', '.join(_named(one) for one in near)} meet its own, one after the other"
    if found.backtest:
        worst = max(found.backtest, key=lambda test: abs(test.error))
        said += f"; the same simulation of what the run measured is {worst.error:+.1%} off at the worst"
    return sentence(said)


def _sections(found: RankedMeshes) -> Iterator[Section]:
    yield Section(title="simulated", blocks=(_table(found),))
    if found.left_out:
        said = tuple(f"{_named(one)}: {one.why}" for one in found.left_out)
        yield Section(title="meshes without a step, simulated", blocks=(lines(*said, look="prose"),))
    yield backtest(found.backtest, found.backtest_missing)
    yield Section(title="what this leans on", blocks=(lines(*found.inputs, look="warnings"),))
    notes = (*(f"not measured and left out: {what}" for what in found.missing), *found.warnings)
    if notes:
        yield Section(title="what it does not know", blocks=(lines(*notes, look="warnings"),))


def _table(found: RankedMeshes) -> Table:
    rows = tuple(
        (
            str(place),
            _named(one),
            quantity(one.step_ms),
            value_of(one.samples_per_s),
            f"{one.over_first:.3f}",
            NONE if one.peak_bytes is None else f"{one.peak_bytes / GB:.1f}",
            (one.slower_by or NONE) if place > 1 else NONE,
        )
        for place, one in enumerate(found.ranked, 1)
    )
    columns = heads(
        "", "mesh", ("step", "ms"), "samples/s", "over the first", ("peak", "GB"), "slower than the one above"
    )
    bound = "; real clusters are slower than this (upper bound)" if found.upper_bound else ""
    return Table(
        columns=columns,
        rows=rows,
        label="Meshes",
        note=f"by samples a second; ±: what links and inputs leave open{bound}",
    )


def _named(one: RankedMesh | MeshLeftOut) -> str:
    degrees = {"replicate": one.replicate, "shard": one.shard, "tensor": one.tensor}
    several = ", ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    return f"{one.strategy} ({several})"
