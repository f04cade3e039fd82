"""What a rank does by itself in a step of a sharded strategy: when it comes to each launch and each wait.

Times in ns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.decompose.sent import Sent
from scaling.spec.listing import ListedCollective
from scaling.spec.schedule import BARE_ALL, PROBE

Turn = tuple[str, str, str, int, int]
"""(kind, axis, phase, unit, how often before in the step). What divided layers send counts as unit 0."""
FORWARD, BACKWARD = "forward", "backward"
COLUMNS = {FORWARD: "forward", BACKWARD: "compute"}
"""Phases and their names in a trial's records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimes:
    """A typical rank's own times of a step, stretched: launch and wait of each turn since the step's begin."""

    at: Mapping[Turn, tuple[float, float]]
    phases: Mapping[str, float] = field(default_factory=dict)
    """What the rank computes in `forward` and `backward`, beside the others."""
    bare: Mapping[str, float] = field(default_factory=dict)
    """The same without any strategy: the whole model on every rank at once. Empty where it was not measured."""

    @property
    def end(self) -> float:
        """When it has done everything."""
        return max((time for both in self.at.values() for time in both), default=0.0)

    def find(self, turn: Turn) -> tuple[float, float] | None:
        """The turn's times; a unit is reduced over copies when it is reduced over shards."""
        kind, axis, phase, unit, _ = turn
        if turn in self.at or (kind, axis) != ("all_reduce", "replicate"):
            return self.at.get(turn)
        scattered = [at for at in self.at if at[:4] == ("reduce_scatter", "shard", phase, unit)]
        return self.at[max(scattered)] if scattered else None

    def scaled(self, factors: Mapping[str, float]) -> OwnTimes:
        """The same with so many times the compute in `forward` and `backward`.

        Until the first all-gather the rank has its optimizer and its input, which stay.
        """
        points = sorted((time, k, turn) for turn, both in self.at.items() for k, time in enumerate(both))
        found: dict[Turn, list[float]] = {turn: list(both) for turn, both in self.at.items()}
        before = grown = 0.0
        for number, (time, k, turn) in enumerate(points):
            fixed = number == 0 and turn[0] == "all_gather"
            grown += (time - before) * (1.0 if fixed else factors[turn[2]])
            before = time
            found[turn][k] = grown
        phases = {name: value * factors[name] for name, value in self.phases.items()}
        at = {turn: (both[0], both[1]) for turn, both in found.items()}
        return OwnTimes(at=at, phases=phases, bare=self.bare)


def own_times(records: TrialRecords, *, divided: bool) -> OwnTimes | None:
    """Mean over rounds and ranks; None where the probe was not measured.

    They are those of the arm over one rank, or where no rank has its part of the layers alone, or where that arm's
    blocks have one step, what lies between a rank's waits in the detailed blocks.
    """
    phases, bare = _phases(records, PROBE), _phases(records, BARE_ALL)
    if divided or not records.turns:
        at = _between_waits(records)
        return None if at is None else OwnTimes(at=at, phases=phases, bare=bare)
    turns = list(records.turns.values())
    names = turns[0].names
    same = [one for one in turns if one.names == names]
    stretch = {
        name: phases[name] / float(np.mean([one.phases[column].mean() for one in same]))
        for name, column in COLUMNS.items()
    }
    at = np.mean([one.at.mean(axis=0) for one in same], axis=0)  # T x 2
    seen: Counter[tuple[str, str, str, int]] = Counter()
    found: dict[Turn, tuple[float, float]] = {}
    before = grown = 0.0
    for index in np.argsort(at[:, 1], kind="stable"):
        kind, phase, unit = names[int(index)]
        name = (kind, "shard", phase, unit)
        turn = (*name, seen[name])
        seen[name] += 1
        launch, wait = (float(x) for x in at[index])
        factor = stretch[phase] if found else 1.0  # the first own time holds the optimizer and the input
        moved = grown + max(0.0, wait - before) * factor
        found[turn] = (min(moved, grown + (launch - before) * factor), moved)
        before, grown = max(before, wait), moved
    return OwnTimes(at=found, phases=phases, bare=bare)


def _phases(records: TrialRecords, arm: str) -> dict[str, float]:
    """Compute of an arm without time stamps inside, mean over rounds and ranks; empty where it was not measured."""
    light = records.by_rank(arm, detailed=False)
    known = {name: light[column][np.isfinite(light[column])] for name, column in COLUMNS.items()}
    return {name: float(values.mean()) for name, values in known.items() if len(values)}


def _between_waits(records: TrialRecords) -> dict[Turn, tuple[float, float]] | None:
    """When a rank would come to each launch and wait if nothing took any time but its own work."""
    programs = list(records.programs.values())
    if not programs:
        return None
    marks = programs[0].marks
    own = np.mean([one.own.mean(axis=(0, 1)) for one in programs if one.marks == marks], axis=0)  # M
    turns = turns_of(records.sent)
    found: dict[Turn, list[float]] = {}
    resumed = 0.0
    for mark, time in zip(marks, own, strict=True):
        at = resumed + float(time)
        both = found.setdefault(turns[mark.collective], [at, at])
        if mark.waits:
            both[1] = resumed = at
    return {turn: (both[0], both[1]) for turn, both in found.items()}


def turns_of(collectives: Sequence[ListedCollective | Sent]) -> list[Turn]:
    """The turn of each collective of a step."""
    seen: Counter[tuple[str, str, str, int]] = Counter()
    found: list[Turn] = []
    for one in collectives:
        name = (one.kind, one.axis, one.phase, 0 if one.axis == "tensor" else one.unit)
        found.append((*name, seen[name]))
        seen[name] += 1
    return found
