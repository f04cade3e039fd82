"""On simulated clusters the truth lies within the analysis's own intervals, in at least 9 of 10 runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import pytest
from support.expected import MS, SLACK, compared, holds

from scaling.analysis.decompose.stragglers import late_ranks
from scaling.analysis.results import Point
from scaling.analysis.statistics.rounds import Rounds

SEEDS = range(10)
HITS = 9


@dataclass(frozen=True)
class Case:
    """Changes to the simulated causes, and the straggler: (rank, phase, slow alone too) or None."""

    truth: dict[str, Any]
    late: tuple[int, str, bool] | None = None
    extra_ms: float = 0.0
    everyone_ms: dict[str, float] = field(default_factory=dict)
    """What all four ranks take longer, by phase."""

    def make(self, cluster: ModuleType, seed: int) -> Any:
        stragglers = tuple(
            cluster.Straggler(rank=rank, phase=phase, extra_ns=ms * MS)
            for phase, ms in self.everyone_ms.items()
            for rank in range(4)
        )
        if self.late:
            rank, phase, alone = self.late
            late = cluster.Straggler(rank=rank, phase=phase, alone=alone, extra_ns=self.extra_ms * MS)
            stragglers = (*stragglers, late)
        # Ranks differ by nothing but what is put in.
        shape = {"world_sizes": (2, 4), "step_noise": 0.0, "stragglers": stragglers}
        return cluster.Truth(**{**shape, **self.truth}, seed=seed)


CASES = {
    "quiet": Case({}),
    "late_in_forward": Case({}, (1, "forward", False), 30),
    "late_in_input": Case({}, (0, "input", False), 20),
    "late_in_host": Case({}, (1, "host", False), 20),
    "slow_by_itself": Case({}, (1, "forward", True), 15),
    "all_slow_in_input_and_host": Case({}, everyone_ms={"input": 6, "host": 4}),
    "fast_link": Case({"beta_ns": 0.1}),
    "strong_scaling": Case({"mode": "strong", "batch": 64, "world_sizes": (1, 2, 4)}),
    "one_channel": Case({"channels": 1}),
}


@dataclass(frozen=True)
class Ten:
    """A case's runs with different noise."""

    case: Case
    points: list[tuple[Point, Any]]
    """World sizes above 1 of every run, each with what is expected."""
    levels: list[Any]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) for name in CASES],  # ten runs a case
)
def ten(request, measure, cluster) -> Ten:
    case = CASES[request.param]
    runs = [measure(case.make(cluster, seed)) for seed in SEEDS]
    points = [(p, r.expected.points[p.world_size]) for r in runs for p in r.analysis.points]
    levels = [level for r in runs for level in r.analysis.fabric.levels]
    return Ten(case=case, points=[pair for pair in points if pair[0].world_size > 1], levels=levels)


def test_the_truth_lies_within_the_interval(ten):
    hits: Counter[tuple[int, str]] = Counter()
    for point, truth in ten.points:
        for name, (number, value, slack) in compared(point, truth).items():
            hits[point.world_size, name] += holds(number, value, slack)
    assert {key: count for key, count in hits.items() if count < HITS} == {}


def test_so_does_the_links_own_truth(ten, cluster):
    truth = ten.case.make(cluster, seed=0)
    hits: Counter[tuple[int, str]] = Counter()
    for level in ten.levels:
        n = level.world_size
        bandwidth = 8 / truth.beta_ns
        hits[n, "alpha"] += holds(level.alpha_us, truth.alpha_ns / 1e3, SLACK * truth.alpha_ns / 1e3)
        hits[n, "bandwidth"] += holds(level.busbw_gbit_s, bandwidth, SLACK * bandwidth)
    assert {key: count for key, count in hits.items() if count < HITS} == {}


def test_the_late_rank_its_phase_and_nobody_else_is_named_every_time(ten):
    for point, truth in ten.points:
        late = point.straggler
        assert (late and (late.rank, late.phase, late.by_itself)) == ten.case.late
        assert truth.late == (() if late is None else (late.rank,))


def test_a_straggler_leaves_the_links_numbers_where_they_are(ten):
    """Bytes are divided by when the link was busy, not by how long anyone waited."""
    for point, truth in ten.points:
        assert point.comm.busbw_gbit_s.value == pytest.approx(truth.busbw_gbit_s, rel=0.03)


def test_two_equally_late_ranks_of_four_are_both_found(measure, cluster):
    late = tuple(cluster.Straggler(rank=r, extra_ns=25 * MS) for r in (1, 2))
    for seed in range(3):
        run = measure(cluster.Truth(world_sizes=(4,), stragglers=late, seed=seed))
        records = run.records.trial(run.plan.trials[0].world_size)
        plain = records.arm("plain")["step"]
        found = late_ranks(records, Rounds({"plain": plain}, records.launches), 0.0)
        assert set(found.ranks) == {1, 2}
        assert found.cost_ns.value == pytest.approx(25 * MS, rel=0.05)
        assert run.point(4).straggler.rank in {1, 2}


def test_ordinary_jitter_makes_nobody_late(measure, cluster):
    for seed in range(3):
        run = measure(cluster.Truth(world_sizes=(2, 4), seed=seed))
        assert all(p.straggler is None for p in run.analysis.points)


def test_a_host_of_eight_late_ranks_is_named_with_its_cost(measure, cluster):
    late = tuple(cluster.Straggler(rank=r, extra_ns=20 * MS) for r in range(8, 16))
    truth = cluster.Truth(
        world_sizes=(16,), hosts=2, ranks_per_host=8, rounds=6, steps=6, stragglers=late, step_noise=0.0
    )
    run = measure(truth)
    clean = measure(replace(truth, stragglers=()))
    found = run.point(16).straggler
    assert (found.host, found.phase) == (1, "forward")
    assert found.rank in range(8, 16)
    more = run.point(16).step_ms.value - clean.point(16).step_ms.value
    assert found.cost_ms.value == pytest.approx(20, rel=0.05)
    assert more == pytest.approx(20, rel=0.1)
    assert clean.point(16).straggler is None
    (verdict,) = [v for v in run.analysis.verdicts if v.cause == "straggler"]
    assert "all ranks of host 1 are late: look at what they share" in verdict.evidence
