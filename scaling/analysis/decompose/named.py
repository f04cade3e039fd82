"""The phases of a step that an own loop names: how long each takes, how much of that is waiting, and who is late in it.

A rank's own time in a phase is what it does not wait there. A late rank is found in it as in whole steps
(decompose.stragglers), with the phase's own times in place of the step's: its cost is what the step would be shorter by
if ranks met behind the phase.
"""

from __future__ import annotations

import dataclasses

import polars as pl

from scaling.analysis.decompose.light import Light, grids_of
from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.decompose.stragglers import FLOOR, late_ranks
from scaling.analysis.results import NamedPhase
from scaling.analysis.statistics.rounds import MS, Rounds, among
from scaling.records.frames import in_memory
from scaling.records.tables import Tables
from scaling.settings.schedule import PROBE


def read_named(tables: Tables, n: int) -> dict[str, Light]:
    """By name, in the order of first use: what ranks do and wait in a phase, as the mean over a block's steps.

    A rank that does not enter a phase takes 0 in it.
    """
    light = (pl.col("arm") == PROBE) & ~pl.col("detailed") & (pl.col("round") >= 0)
    loop = tables.blocks.filter(light & (pl.col("world_size") == n) & (pl.col("rank") < n))
    blocks = in_memory(loop.select("launch", "round", "block", "rank", "steps"))
    keys = ["launch", "block", "rank"]
    sound = (pl.col("wait_ns") >= 0) & (pl.col("ns") >= pl.col("wait_ns"))
    rows = in_memory(tables.phases.filter(sound)).join(blocks, on=keys, how="semi")
    took, waited = (pl.col(name).fill_null(0) / pl.col("steps") for name in ("ns", "wait_ns"))
    named: dict[str, Light] = {}
    for (name,), part in rows.partition_by("name", as_dict=True, maintain_order=True).items():
        whole = blocks.join(part, on=keys, how="left").with_columns(step=0)
        if grids := grids_of(whole, n, {"own": took - waited, "waited": waited}):
            named[str(name)] = Light(
                own_ns={key: grid["own"] for key, grid in grids},
                waited={key: grid["waited"].mean(axis=0) for key, grid in grids},
                alike={},
            )
    return named


def phases(records: TrialRecords, rounds: Rounds, floor: float, least_ns: float) -> tuple[NamedPhase, ...]:
    """Every named phase. `floor`: as `late_ranks` has it. A late rank costs more than `least_ns`.

    With more phases, one of them shows a late rank by chance more often, so intervals hold for all of them at once.
    """
    step, results = rounds.measure("plain"), []
    bar = max(least_ns, FLOOR * step.value) if step else least_ns
    for name, light in records.named.items():
        computed, waits = (
            records.per_round({key: float(each.mean()) for key, each in of_rounds.items()})
            for of_rounds in (light.own_ns, light.waited)
        )
        grown = rounds.extend({"named": computed + waits, "named.waits": waits})
        took, waited = grown.measure("named", scale=MS), grown.measure("named.waits", scale=MS)
        if took is None or waited is None:
            continue
        here = dataclasses.replace(records, light=light, cycles=())
        late = late_ranks(here, rounds, floor)
        if late is not None and not among(late.cost_ns, len(records.named)).surely_above(bar):
            late = None
        results.append(
            NamedPhase(
                name=name,
                ms=took,
                waits_ms=waited,
                late_rank=late.ranks[0] if late else None,
                late_ms=late.cost_ns * MS if late else None,
            )
        )
    return tuple(results)
