"""What the run at one world size brings to a study: its steps launch by launch, and its phases as shares. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.analysis.decompose import own
from scaling.analysis.decompose.point import arms
from scaling.analysis.decompose.trials import read_trial
from scaling.analysis.quality import launches
from scaling.analysis.results import Analysis, Measured, Point
from scaling.analysis.statistics.rounds import Formula, Rounds
from scaling.records.tables import Tables
from scaling.spec.plan import Plan
from scaling.spec.schedule import PLAIN, PROBE

COMPUTE = ("forward", "compute", "optimizer")
"""Phases that need no other rank; `compute` is backward without its waits."""
PHASES = (*COMPUTE, "input", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One world size of a study."""

    path: str
    """The run's folder, for messages."""
    plan: Plan
    analysis: Analysis
    launch_ns: tuple[float, ...]
    """Mean plain step of each launch that counts."""
    shares: Mapping[str, Measured]
    """Input, host and COMPUTE together (`compute`) of the typical ranks, and `waits`: fractions of the step."""

    @property
    def world_size(self) -> int:
        return self.plan.ranks

    @property
    def batch(self) -> int:
        """Samples of a rank in a step; 0 where they were not seen."""
        return self.plan.trials[0].batch

    @property
    def point(self) -> Point:
        return self.analysis.points[0]


def read_size(path: str, plan: Plan, analysis: Analysis, tables: Tables) -> Size:
    """Read an own loop's run, which `analysis` was made of."""
    tables = own.usable(tables, plan)
    trial = plan.trials[0]
    tables = launches.of_launches(tables, launches.counted(tables, plan, trial))
    records = read_trial(tables, plan, trial)
    if records.index.is_empty():
        return Size(path=path, plan=plan, analysis=analysis, launch_ns=(), shares={})
    rounds = arms(records, plan).rounds
    steps, launch = rounds.values[PLAIN], rounds.launch
    there = np.isfinite(steps)
    means = tuple(float(steps[there & (launch == k)].mean()) for k in np.unique(launch[there]))
    found = {
        "compute": _share(rounds, *COMPUTE),
        "input": _share(rounds, "input"),
        "host": _share(rounds, "host"),
        "waits": rounds.measure(
            lambda m: 1 - sum((m[f"typical.{PROBE}.{phase}"] for phase in PHASES), np.zeros(1)) / m[PROBE]
        ),
    }
    shares = {name: share for name, share in found.items() if share is not None}
    return Size(path=path, plan=plan, analysis=analysis, launch_ns=means, shares=shares)


def _share(rounds: Rounds, *phases: str) -> Measured | None:
    """Phases of the typical ranks as a fraction of the step with phase stamps."""
    share: Formula = lambda m: sum((m[f"typical.{PROBE}.{p}"] for p in phases), np.zeros(1)) / m[PROBE]  # noqa: E731
    return rounds.measure(share)
