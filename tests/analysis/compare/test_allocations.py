"""Ratios of several allocations, decided against how far nodes of one partition are apart."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.results import bare, inference, run_info

from scaling.analysis.compare.runs import compare
from scaling.analysis.compare.sweep import Member, across, sides, sweep, with_allocations
from scaling.analysis.results import (
    Allocation,
    Measured,
    Point,
)
from scaling.report import side_by_side
from scaling.report.documents import comparison
from scaling.report.side_by_side import allocation_lines
from scaling.settings.plan import make_plan
from scaling.settings.run import Cost


def about(value, relative=0.001):
    return Measured(value, value * (1 - relative), value * (1 + relative), 8)


@pytest.fixture
def member(cluster):
    """member(rate, *nodes, partition=...): one run at 2 ranks, with its samples a second known to 0.1 %."""
    spec = cluster.spec_of(cluster.Truth())

    def made(rate, *nodes, partition="pcie", devices=(), launcher="slurm", cases=(), **changes):
        topology = replace(spec.topology, name=partition)
        settings = replace(spec.cluster, partition=partition)
        id_ = f"run-{'-'.join(nodes)}-{rate}"
        measured = {"step_ms": about(64e3 / rate), "samples_per_s": about(rate)}
        points = () if cases else (Point(world_size=2, hosts=1, status="done", **measured),)
        analysis = bare(run_info(id=id_, topology=partition), *points, inference=cases)
        asked = replace(spec, topology=topology, cluster=settings, launcher=launcher, **changes)
        plan = make_plan(asked, run_id=id_, created="", version="")
        return Member(analysis=analysis, plan=plan, nodes=nodes, devices=devices)

    return made


def compared(base, other):
    """The comparison of two sides."""
    first = compare(base[0].analysis, other[0].analysis, base[0].plan, other[0].plan)
    return with_allocations(first, base, other)


# Statistics


@pytest.mark.parametrize(("few", "many"), [(2, 2), (3, 3), (2, 8)])
def test_the_interval_holds_the_true_ratio_of_the_partitions(few, many):
    """Nodes of either partition differ by 5 %, a run's own error is 1 %: 95 of 100 intervals hold it at least."""
    rng, true, held = np.random.default_rng(7), 1.3, 0
    for _ in range(1500):
        base, other = (
            [about(math.exp(x), 0.02) for x in math.log(mean) + rng.normal(0, math.hypot(0.05, 0.01), k)]
            for mean, k in ((100, few), (100 * true, many))
        )
        found = across(base, other)
        assert found is not None
        held += found.holds(true)
    assert held / 1500 >= 0.94


def test_what_one_allocation_claims_is_not_claimed_against_the_spread():
    """Two partitions that are the same, whose nodes differ by 5 %: single runs, known to 0.1 %, differ each time."""
    rng, by_one, by_all = np.random.default_rng(11), 0, 0
    for _ in range(400):
        base, other = ([about(100 * math.exp(x)) for x in rng.normal(0, 0.05, 3)] for _ in range(2))
        by_one += (other[0] / base[0]).differs_from(1)
        by_all += across(base, other).differs_from(1)
    assert by_one / 400 > 0.9
    assert by_all / 400 < 0.08


def test_allocations_that_agree_by_chance_are_known_no_better_than_each_is():
    same = [about(100, 0.05)] * 3
    assert across(same, same).log_half_width > 0.02
    assert across([Measured(100.0)] * 2, [Measured(200.0)] * 2).interval == pytest.approx((2, 2))


def test_one_allocation_of_a_side_gives_no_spread():
    assert across([about(100)], [about(100), about(101)]) is None


# Which runs are allocations of one side


def test_equal_settings_on_other_nodes_are_one_side(member):
    runs = [
        member(100, "pcie1"),
        member(300, "nv1", partition="nvlink"),
        member(101, "pcie2"),
        member(99, "pcie1"),  # measured again on the same node
        member(100),  # nobody knows where
        member(301, "nv2", partition="nvlink"),
    ]
    assert sides(runs) == [[0, 2], [1, 5], [3], [4]]


def test_a_device_in_both_is_the_same_node_by_another_name(member):
    runs = [member(100, "c1", devices=("GPU-1",)), member(100, "c2", devices=("GPU-1",))]
    assert sides(runs) == [[0], [1]]


def test_other_nodes_that_were_asked_for_by_name_are_other_nodes(member):
    one, two = member(100, "pcie1"), member(101, "pcie2")
    named = replace(two.plan.spec.cluster, sbatch={"nodelist": "pcie2"})
    two = replace(two, plan=replace(two.plan, spec=replace(two.plan.spec, cluster=named)))
    assert sides([one, two]) == [[0, 1]]


# What a comparison says


def test_a_slow_node_is_no_difference_of_partitions(member):
    base = [member(100, "pcie1"), member(60, "pcie2")]
    other = [member(101, "nv1", partition="nvlink"), member(100, "nv2", partition="nvlink")]
    alone = compared(base[1:], other[:1])
    assert alone.points[0].distinguishable  # what one allocation of each says
    found = compared(base, other)
    (point,) = found.points
    assert not point.distinguishable
    assert point.ratio.value == pytest.approx(math.sqrt(101 * 100 / (100 * 60)))
    assert found.allocations.base == (
        Allocation(run="run-pcie1-100", nodes=("pcie1",)),
        Allocation(run="run-pcie2-60", nodes=("pcie2",)),
    )
    said = side_by_side.answer(found)
    assert "the two runs are not distinguishable" in said
    assert "2 allocations of each, which are up to 67 % apart with pcie and 1 % with nvlink" in said
    assert list(allocation_lines(found, ("pcie", "nvlink"))) == [
        "pcie: 2 allocations: pcie1; pcie2",
        "nvlink: 2 allocations: nv1; nv2",
        "2 ranks: pcie: up to 67 % apart, slowest pcie2",
        "2 ranks: nvlink: up to 1 % apart, slowest nv2",
    ]


def test_a_difference_beyond_the_spread_is_one(member):
    base = [member(rate, f"pcie{k}") for k, rate in enumerate((98, 100, 103))]
    other = [member(rate, f"nv{k}", partition="nvlink") for k, rate in enumerate((299, 305, 296))]
    found = compared(base, other)
    (point,) = found.points
    assert point.distinguishable
    assert point.ratio.holds(3.0)
    assert point.ratio.n == 3
    assert "nvlink is faster than pcie" in side_by_side.answer(found)
    wide, own = point.ratio.log_half_width, compared(base[:1], other[:1]).points[0].ratio.log_half_width
    assert wide > 5 * own


def test_one_allocation_of_each_says_so(member):
    base, other = [member(100, "pcie1")], [member(300, "nv1", partition="nvlink")]
    found = compared(base, other)
    assert found.points[0].allocations is None
    said = "This is one allocation of each; nodes of one partition may differ: cluster.allocations=3 measures how much."
    assert side_by_side.answer(found).endswith(said)
    several_of_one = compared([*base, member(101, "pcie2")], other)
    assert several_of_one.points[0].ratio == found.points[0].ratio
    assert "This is 2 allocations of pcie and 1 of nvlink; nodes" in side_by_side.answer(several_of_one)


def test_nodes_are_no_matter_on_the_same_nodes_and_outside_of_slurm(member):
    other = {"partition": "nvlink"}
    assert compared([member(100, "a")], [member(300, "a", **other)]).allocations is None
    local = {"launcher": "local"}
    assert compared([member(100, "a", **local)], [member(300, "b", **other, **local)]).allocations is None
    assert compared([member(100)], [member(300, "b", **other)]).allocations is None


def test_equal_settings_on_two_nodes_compare_these_nodes(member):
    """The ratio is then the nodes' own, and not one of partitions."""
    found = compared([member(100, "a")], [member(90, "b")])
    assert found.allocations is None
    assert found.points[0].distinguishable
    known = compare(
        *(run.analysis for run in (member(100, "a"), member(90, "b"))),
        *(run.plan for run in (member(100, "a"), member(90, "b"))),
        environments=({"hostname": "a"}, {"hostname": "b"}),
    )
    assert "on b is slower than on a" in side_by_side.answer(known)


def test_the_price_of_samples_follows_the_ratio(member):
    base = [member(rate, f"p{rate}", cost=Cost(usd_per_gpu_hour=1.0)) for rate in (100, 104)]
    other = [
        member(rate, f"n{rate}", partition="nvlink", cost=Cost(usd_per_gpu_hour=2.0)) for rate in (300, 312)
    ]
    (point,) = compared(base, other).points
    assert point.cost.per_usd.value == pytest.approx(point.ratio.value / 2)
    assert point.cost.per_usd.log_half_width == pytest.approx(point.ratio.log_half_width)


def test_cases_are_decided_against_the_spread_too(member):
    def case(rate):
        return inference(8, samples_per_s=about(rate), world_size=1)

    base = [member(rate, f"p{rate}", cases=(case(rate),)) for rate in (100, 60)]
    other = [member(rate, f"n{rate}", partition="nvlink", cases=(case(rate),)) for rate in (101, 100)]
    assert compared(base[1:], other[:1]).cases[0].distinguishable
    found = compared(base, other)
    assert not found.cases[0].distinguishable
    assert "The intervals contain how far nodes differ: 2 allocations of each." in side_by_side.answer(found)


# The table of all runs


def test_runs_that_differ_in_their_nodes_alone_are_named_by_them(member):
    runs = [
        member(100, "pcie1", "pcie2"),
        member(101, "pcie3", "pcie4"),
        member(300, "nv1", "nv2", partition="nvlink"),
        member(301, "nv3", "nv4", partition="nvlink"),
    ]
    table = sweep(runs)
    assert table.keys[-1] == "nodes"
    assert [row.settings["nodes"] for row in table.rows] == ["pcie[1-2]", "pcie[3-4]", "nv[1-2]", "nv[3-4]"]
    assert len(set(table.names)) == 4
    found = [compared(runs[:2], runs[2:])]
    document = comparison.several_document(table, found, [run.analysis for run in runs])
    assert document.answer.startswith("The most samples a second, 301")
    assert "At 2 ranks nvlink is faster than pcie: 3.0" in document.answer


def test_a_table_of_single_allocations_says_so_once(member):
    runs = [member(100 * k, f"n{k}", partition=f"p{k}") for k in (1, 2, 3)]
    found = [compared(runs[:1], [other]) for other in runs[1:]]
    answer = comparison.several_document(sweep(runs), found, [run.analysis for run in runs]).answer
    assert answer.count("This is one allocation of each") == 1


def test_runs_of_different_settings_need_no_nodes_to_be_named(member):
    assert "nodes" not in sweep([member(100, "a"), member(300, "b", partition="nvlink")]).keys
