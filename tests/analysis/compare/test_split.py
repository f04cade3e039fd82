"""A ratio split into compute and fabric, against a cluster whose every combination is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.analysis.compare.runs import compare, split, with_split
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.predict.sources import read_sources

LINK = ("alpha_ns", "beta_ns")


def slower(truth, compute=1.0, beta=1.0):
    return replace(
        truth,
        forward_ns=truth.forward_ns * compute,
        backward_ns=truth.backward_ns * compute,
        optimizer_ns=truth.optimizer_ns * compute,
        beta_ns=truth.beta_ns * beta,
        seed=truth.seed + 1,
    )


def sources(run, seed=0):
    drawn = replace(run.plan, spec=replace(run.plan.spec, seed=run.plan.spec.seed + seed))
    return read_sources(RunRecords(run.tables, drawn))


def ratio_of(base, other, n):
    points = compare(base.analysis, other.analysis, base.plan, other.plan).points
    return next(p.ratio for p in points if p.world_size == n)


def found(base, other, n):
    first, second = (
        next(s for s in sources(run, seed) if s.world_size == n) for seed, run in enumerate((base, other))
    )
    return split(first, second, ratio_of(base, other, n))


def expected(cluster, base, other, run, n):
    """(compute, fabric) by the physics: each change made first from either side."""
    trial = next(t for t in run.plan.trials if t.world_size == n)

    def step(truth):
        return cluster.expect(truth, trial).step_ns["plain"]

    links = [{name: getattr(t, name) for name in LINK} for t in (base, other)]
    crossed = step(replace(base, **links[1])), step(replace(other, **links[0]))
    here, there = step(base), step(other)
    fabric = (here / crossed[0] * crossed[1] / there) ** 0.5
    compute = (here / crossed[1] * crossed[0] / there) ** 0.5
    return compute, fabric


def holds(number, value):
    return number.low <= value <= number.high


@pytest.fixture(scope="module")
def slow_truth(cluster):
    """A link that takes about as long as compute, which hides part of it."""
    return slower(cluster.Truth(world_sizes=(2, 4), rounds=8), compute=1.4, beta=3.0)


@pytest.fixture(scope="module")
def slow(measure, slow_truth):
    return measure(slow_truth)


@pytest.mark.parametrize(("compute", "beta"), [(1 / 1.4, 0.5), (1 / 1.4, 1.0), (1.0, 0.25), (2.0, 0.5)])
@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_compute_and_fabric_are_what_the_physics_says(measure, cluster, slow_truth, slow, compute, beta, n):
    truth = slower(slow_truth, compute=compute, beta=beta)
    other = measure(truth)
    got = found(slow, other, n)
    by_compute, by_fabric = expected(cluster, slow_truth, truth, other, n)
    assert got.compute.value == pytest.approx(by_compute, rel=0.04)
    assert got.fabric.value == pytest.approx(by_fabric, rel=0.04)
    assert holds(got.compute, by_compute)
    assert holds(got.fabric, by_fabric)
    assert holds(got.left, 1.0)
    assert got.alone.value == pytest.approx(1 / compute, rel=0.03)


def test_the_three_make_up_the_ratio(measure, slow_truth, slow):
    other = measure(slower(slow_truth, compute=0.7, beta=0.5))
    got = found(slow, other, 4)
    product = got.compute.value * got.fabric.value * got.left.value
    assert product == pytest.approx(ratio_of(slow, other, 4).value)


def test_it_is_the_same_seen_from_the_other_run(measure, slow_truth, slow):
    other = measure(slower(slow_truth, compute=0.7, beta=0.5))
    there, back = found(slow, other, 4), found(other, slow, 4)
    assert there.fabric.value == pytest.approx(1 / back.fabric.value, rel=0.01)
    assert there.compute.value == pytest.approx(1 / back.compute.value, rel=0.01)


def test_a_late_rank_is_neither_the_devices_doing_nor_the_links(measure, cluster, slow_truth, slow):
    late = cluster.Straggler(rank=1, extra_ns=25e6)
    other = measure(replace(slow_truth, stragglers=(late,), seed=9))
    got = found(slow, other, 4)
    assert holds(got.fabric, 1.0)
    assert holds(got.compute, 1.0)
    assert got.left.high < 1


def test_runs_that_are_not_comparable_are_not_split(measure, slow_truth, slow):
    other = measure(slower(slow_truth, beta=0.5))
    pieces = sources(slow), sources(other, 1)
    alike = compare(slow.analysis, other.analysis, slow.plan, other.plan)
    assert all(p.split for p in with_split(alike, *pieces).points)
    unlike = compare(
        slow.analysis,
        replace(other.analysis, run=replace(other.analysis.run, model="x")),
        slow.plan,
        other.plan,
    )
    assert not any(p.split for p in with_split(unlike, *pieces).points)
    assert not any(p.split for p in with_split(alike, (), ()).points)
