"""A simulated run, collected and analysed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.tables import checked

from scaling.analysis.about import Ending
from scaling.analysis.analyze import analyze
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.results import Analysis, Point, TrialStatus
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan
from scaling.records.tables import Tables
from scaling.settings.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was put in, what was recorded, what was found."""

    expected: Any
    plan: Plan
    tables: Tables
    analysis: Analysis

    def point(self, world_size: int) -> Point:
        return next(p for p in self.analysis.points if p.world_size == world_size)

    @property
    def records(self) -> RunRecords:
        return RunRecords(self.tables, self.plan)

    def analyze(self, tables: Tables) -> Analysis:
        """The same run had it recorded these tables."""
        return analyzed(tables, self.plan)


def analyzed(tables: Tables, plan: Plan) -> Analysis:
    trials = tuple(TrialStatus(world_size=t.world_size, status="done") for t in plan.trials)
    return analyze(RunRecords(tables, plan), Ending(duration_s=60.0, launches=1, trials=trials))


@pytest.fixture
def plan(cluster: Any) -> Plan:
    """That of the simulated cluster's own run."""
    return cluster.plan_of(cluster.Truth())


@pytest.fixture(scope="session")
def measure(simulate) -> Callable[[Any], Run]:
    """measure(truth): simulate it, read the rank files, analyse them."""

    def measured(truth) -> Run:
        with tempfile.TemporaryDirectory() as parent:
            folder = RunFolder(Path(parent) / "run")
            expected = simulate(truth, folder.path)
            plan = read_plan(folder)
            tables = checked(folder, plan)
        return Run(expected=expected, plan=plan, tables=tables, analysis=analyzed(tables, plan))

    return measured
