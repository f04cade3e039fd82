"""Two runs side by side.

A ratio split into compute and fabric, against a cluster whose every combination is known.
"""

from dataclasses import replace

import pytest
from support.results import bare, inference, run_info

from scaling.analysis.compare.runs import compare, gate, split, with_split
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.predict.sources import read_sources
from scaling.analysis.results import (
    ArmTimes,
    Loss,
    Measured,
    Point,
    SampleCost,
)
from scaling.report import side_by_side
from scaling.settings.run import Cost


def about(value, relative=0.02):
    return Measured(value, value * (1 - relative), value * (1 + relative), 8)


def run(*points, **changes):
    info = run_info(id="run", model="mlp", topology="local", duration_s=60.0)
    return bare(replace(info, **changes), *points)


def point(n=4, step=100.0, alone=60.0, relative=0.02, **loss):
    """Throughput is 128 samples a step; what no cause is given for is unexplained."""
    rest = 1 - alone / step - sum(loss.values())
    return Point(
        world_size=n,
        hosts=n,
        status="done",
        step_ms=about(step, relative),
        samples_per_s=about(128e3 / step, relative),
        efficiency=about(alone / step, relative),
        arms_ms=ArmTimes(bare_one=about(alone, relative), plain=about(step, relative)),
        loss=Loss(**{k: about(v, relative) for k, v in loss.items()}, unexplained=about(rest)),
    )


def test_a_run_beside_itself_is_equal_by_definition(plan):
    found = compare(run(point(relative=0.2)), run(point(relative=0.2)), plan, plan)
    assert found.one_run
    assert found.points[0].ratio.interval == (1.0, 1.0)
    assert gate([found], 0.95) == "met"
    assert side_by_side.answer(found).startswith("Both are the same run, so every ratio is 1 by definition")
    again = compare(run(point(relative=0.2)), run(point(relative=0.2), id="again"), plan, plan)
    assert not again.one_run
    assert gate([again], 0.95) == "undecided"


def test_a_ratio_of_uneven_throughputs_stays_above_zero_and_tells_nothing(plan):
    wild = replace(point(), samples_per_s=Measured(465.0, 4.5, 48000.0, 3))
    (found,) = compare(run(wild), run(wild, id="again"), plan, plan).points
    assert found.ratio.low > 0
    assert not found.ratio.tells


def test_an_equal_run_is_not_distinguishable(plan):
    found = compare(run(point()), run(point(), id="again"), plan, plan)
    (only,) = found.points
    assert (found.comparable, found.reasons) == (True, ())
    assert only.ratio.value == 1
    assert not only.distinguishable
    assert all(cause.value == 0 for cause in only.causes.values() if cause)


def test_a_faster_run_has_a_ratio_above_one(plan):
    (found,) = compare(run(point(step=100.0)), run(point(step=80.0)), plan, plan).points
    assert found.ratio.value == pytest.approx(1.25)
    assert found.distinguishable


def test_half_widths_of_two_runs_add_in_quadrature(plan):
    (found,) = compare(run(point(relative=0.03)), run(point(relative=0.04)), plan, plan).points
    assert found.ratio.half_width == pytest.approx(0.05)


def test_a_difference_inside_the_noise_is_not_distinguishable(plan):
    (found,) = compare(run(point(step=100.0)), run(point(step=98.0)), plan, plan).points
    assert found.ratio.value > 1
    assert not found.distinguishable


def test_without_intervals_there_is_a_ratio_and_no_claim(plan):
    bare = replace(point(), samples_per_s=Measured(1280.0, n=2))
    (found,) = compare(run(bare), run(point(step=50.0)), plan, plan).points
    assert (found.ratio.value, found.ratio.low) == (pytest.approx(2.0), None)
    assert not found.distinguishable


def test_on_one_machine_a_ratio_within_its_drift_is_no_difference(plan):
    """A rank alone took 10 % longer in the second run: so much the machine moved, whatever is compared."""
    base, other = point(step=100.0, alone=60.0), point(step=105.0, alone=66.0)
    (found,) = compare(run(base), run(other), plan, plan, same_machine=True).points
    assert found.control.value == pytest.approx(60 / 66)
    assert not found.distinguishable
    (elsewhere,) = compare(run(base), run(other), plan, plan).points
    assert elsewhere.control is None


def test_a_machine_whose_drift_is_not_known_decides_no_ratio(plan):
    """A rank alone is the same in the mean, but may have moved by 40 %: a third more samples can be the machine's."""
    base = replace(point(step=134.0), arms_ms=ArmTimes(bare_one=about(60.0, 0.4)))
    other = point(step=100.0)
    (found,) = compare(run(base), run(other), plan, plan, same_machine=True).points
    assert found.ratio.value == pytest.approx(1.34)
    assert not found.distinguishable
    (elsewhere,) = compare(run(base), run(other), plan, plan).points
    assert elsewhere.distinguishable


def test_several_world_sizes_pay_for_each_other(plan):
    """A ratio that stands clear of 1 by itself does not where twelve are asked for: one in twenty does so by chance."""
    sizes = [2**k for k in range(1, 13)]
    base = [point(n=n, step=100.0) for n in sizes]
    other = [point(n=n, step=96.9 if n == 2 else 100.0) for n in sizes]
    (by_itself,) = compare(run(base[0]), run(other[0]), plan, plan).points
    assert by_itself.distinguishable
    assert not any(p.distinguishable for p in compare(run(*base), run(*other), plan, plan).points)


def cases(*rates):
    """A batch each, samples a second, known to 2 %."""
    return tuple(inference(batch, samples_per_s=about(rate)) for batch, rate in enumerate(rates, 1))


@pytest.mark.parametrize(("many", "told"), [(1, True), (30, False)])
def test_of_many_cases_none_is_different_for_being_out_by_chance(plan, many, told):
    """Ratios of +-2.8 %, one of them 3.2 % off: of thirty equal ones, one or two are."""
    base = replace(run(), inference=cases(*[100.0] * many))
    other = replace(run(), inference=cases(96.8, *[100.0] * (many - 1)))
    found = compare(base, other, plan, plan).cases
    assert [case.distinguishable for case in found] == [told, *[False] * (many - 1)]


def test_cases_that_are_known_to_no_better_than_themselves_are_not_told_apart(plan):
    """An interval that reaches below zero."""
    rough = tuple(replace(c, samples_per_s=about(100.0, 1.3)) for c in cases(100.0, 100.0))
    found = compare(replace(run(), inference=rough), replace(run(), inference=rough), plan, plan).cases
    assert [case.distinguishable for case in found] == [False, False]


def test_causes_say_in_ms_where_the_difference_comes_from(plan):
    slow = point(step=120.0, alone=60.0, link_bandwidth=0.5)
    fast = point(step=80.0, alone=60.0, link_bandwidth=0.25)
    (found,) = compare(run(slow), run(fast), plan, plan).points
    assert found.causes["compute"].value == 0
    assert found.causes["link_bandwidth"].value == pytest.approx(20.0 - 60.0)
    assert found.causes["link_bandwidth"].half_width == pytest.approx(0.02 * (20.0**2 + 60.0**2) ** 0.5)


def test_causes_of_weak_scaling_add_up_to_the_difference(plan):
    base = point(step=120.0, neighbours=0.1, overlap=0.0)
    other = point(step=80.0, alone=50.0, neighbours=0.0, overlap=0.2)
    (found,) = compare(run(base), run(other), plan, plan).points
    assert sum(c.value for c in found.causes.values() if c) == pytest.approx(80.0 - 120.0)


def test_causes_of_strong_scaling_add_up_too(measure, cluster):
    """`small_batch` holds what a rank's part of the batch takes beyond its fair share."""
    truth = cluster.Truth(mode="strong", batch=64, world_sizes=(1, 4), rounds=4)
    slow = measure(truth)
    fast = measure(replace(truth, forward_ns=truth.forward_ns / 2))
    four = compare(slow.analysis, fast.analysis, slow.plan, fast.plan).points[-1]
    difference = fast.point(4).step_ms.value - slow.point(4).step_ms.value
    assert sum(c.value for c in four.causes.values() if c) == pytest.approx(difference)


def test_what_one_run_does_not_know_has_no_difference(plan):
    (found,) = compare(run(replace(point(), loss=None)), run(point()), plan, plan).points
    assert set(found.causes) == {"compute"}
    (found,) = compare(run(point()), run(replace(point(), efficiency=None)), plan, plan).points
    assert found.causes["compute"] is None
    assert found.causes["overlap"] is None
    (found,) = compare(run(replace(point(), samples_per_s=None)), run(point()), plan, plan).points
    assert found.ratio is None


# Comparable


@pytest.mark.parametrize(
    "changes", [{"model": "gpt2"}, {"precision": "bf16"}, {"mode": "strong"}, {"synthetic": True}]
)
def test_runs_of_different_things_are_not_comparable(plan, changes):
    found = compare(run(point()), run(point(), **changes), plan, plan)
    (name,) = changes
    assert not found.comparable
    assert name in found.reasons[0]
    assert found.points  # shown all the same


@pytest.mark.parametrize("changes", [{"topology": "hgx"}, {"id": "other"}, {"backend": "nccl"}])
def test_runs_of_the_same_thing_on_other_machines_are(plan, changes):
    assert compare(run(point()), run(point(), **changes), plan, plan).comparable


def test_another_batch_or_model_setting_is_a_reason(plan):
    def changed(**changes):
        other = replace(plan, spec=replace(plan.spec, **changes))
        return compare(run(point()), run(point()), plan, other).reasons

    assert changed(batch_per_rank=64) == ("batch_per_rank differs: 32 and 64",)
    assert changed(accumulation_steps=2) == ("accumulation_steps differs: 1 and 2",)
    assert changed(global_batch=77) == ()  # read in strong scaling only
    (said,) = changed(model=replace(plan.spec.model, args={"layers": 3}))
    assert "layers" in said


def test_no_world_size_in_common_is_a_reason(plan):
    found = compare(run(point(n=2)), run(point(n=4)), plan, plan)
    assert (found.comparable, found.points) == (False, ())
    assert found.reasons == ("no world size in common",)


def test_only_common_world_sizes_are_compared(plan):
    found = compare(run(point(n=2), point(n=4)), run(point(n=4), point(n=8)), plan, plan)
    assert [p.world_size for p in found.points] == [4]


# Cost


def priced(plan, usd):
    return replace(plan, spec=replace(plan.spec, cost=Cost(usd_per_gpu_hour=usd)))


def test_a_million_samples_cost_what_the_gpus_cost_while_they_are_made(plan):
    """Four GPUs at 3.6 USD an hour are 4e-3 USD a second; at 1280 samples a second a million takes 781.25 s."""
    (found,) = compare(run(point()), run(point(step=80.0)), priced(plan, 3.6), priced(plan, 3.6)).points
    cost = found.cost
    assert cost.base.usd_per_million_samples.value == pytest.approx(3.125)
    assert cost.other.usd_per_million_samples.value == pytest.approx(2.5)
    assert cost.per_usd.value == pytest.approx(1.25)
    throughput = point().samples_per_s
    usd = cost.base.usd_per_million_samples
    assert usd.low == pytest.approx(4e3 / throughput.high)
    assert usd.high == pytest.approx(4e3 / throughput.low)


def test_a_faster_machine_that_costs_more_can_give_less_for_a_dollar(plan):
    (found,) = compare(run(point()), run(point(step=80.0)), priced(plan, 2.0), priced(plan, 4.0)).points
    assert found.ratio.value == pytest.approx(1.25)
    assert found.cost.per_usd.value == pytest.approx(0.625)
    assert found.cost.per_usd.half_width == pytest.approx(found.ratio.half_width / 2)


def test_prices_that_are_given_go_before_those_of_the_runs(plan):
    pair = priced(plan, 2.0), plan
    (found,) = compare(run(point()), run(point()), *pair, prices=(None, 1.0)).points
    assert found.cost.per_usd.value == pytest.approx(2.0)
    (found,) = compare(run(point()), run(point()), *pair).points
    assert found.cost.base.usd_per_million_samples is not None
    assert found.cost.other.usd_per_million_samples is None  # no price, no zero
    assert found.cost.per_usd is None


def test_samples_a_joule_where_both_know_their_power(plan):
    def drawing(joule):
        return replace(point(), cost=SampleCost(power_w=about(400.0), samples_per_joule=about(joule)))

    (found,) = compare(run(drawing(2.0)), run(drawing(3.0)), plan, plan).points
    assert found.cost.per_joule.value == pytest.approx(1.5)
    (found,) = compare(run(drawing(2.0)), run(point()), plan, plan).points
    assert found.cost.per_joule is None
    assert found.cost.base.samples_per_joule.value == 2.0


# What else differs


def test_settings_are_named_as_their_overrides(plan):
    spec = plan.spec
    other = replace(
        plan,
        spec=replace(
            spec,
            ddp=replace(spec.ddp, bucket_cap_mb=100.0),
            env={"NCCL_P2P_DISABLE": "1", "MY_TOKEN": "hidden"},
            model=replace(spec.model, args={"token_dim": 8}),
            seed=7,
        ),
    )
    found = compare(run(point()), run(point()), plan, other).settings
    assert {(s.of, s.key, s.base, s.other) for s in found} == {
        ("settings", "ddp.bucket_cap_mb", "25", "100.0"),
        ("settings", "env.NCCL_P2P_DISABLE", None, "1"),
        ("settings", "model.token_dim", None, "8"),
    }


def test_what_they_ran_on_differs_too(plan):
    base = {"torch": "2.13.0", "env.OMP_NUM_THREADS": "1", "env.SLURM_JOB_ID": "1"}
    other = {"torch": "2.12.0", "env.SLURM_JOB_ID": "2", "env.WANDB_API_KEY": "x"}
    found = compare(run(point()), run(point()), plan, plan, environments=(base, other)).settings
    assert {(s.of, s.key, s.base, s.other) for s in found} == {
        ("environment", "torch", "2.13.0", "2.12.0"),
        ("environment", "env.OMP_NUM_THREADS", "1", None),
    }
    assert compare(run(point()), run(point()), plan, plan, environments=(base, {})).settings == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"compile": True}, False),
        ({"threads": 7}, False),
        ({"env": {"OMP_WAIT_POLICY": "passive"}}, False),
        ({"env": {"NCCL_P2P_DISABLE": "1"}}, True),
    ],
)
def test_a_rank_alone_that_runs_something_else_tells_nothing_of_the_machine(plan, changes, told):
    """Compiled, a rank alone takes 40 in place of 60 ms: that is what was asked, and no drift."""
    other = replace(plan, spec=replace(plan.spec, **changes))
    runs = run(point(step=100.0, alone=60.0)), run(point(step=80.0, alone=40.0))
    (found,) = compare(*runs, plan, other, same_machine=True).points
    assert (found.control is not None) == told
    assert found.distinguishable == (not told)


# The gate


@pytest.mark.parametrize(
    ("step", "stands"), [(90.0, "met"), (104.0, "undecided"), (106.0, "undecided"), (112.0, "not_met")]
)
def test_a_regression_is_below_the_bar_with_its_whole_interval(plan, step, stands):
    """At 106 ms the ratio is 0.943 but its interval reaches 0.97: not shown to be below 0.95."""
    assert gate([compare(run(point()), run(point(step=step)), plan, plan)], 0.95) == stands


def test_what_the_machine_itself_moved_is_no_regression(plan):
    """A rank alone is 10 % slower too: the bar is on the run and not on the day."""
    slow = run(point(step=112.0, alone=66.0))
    assert gate([compare(run(point()), slow, plan, plan, same_machine=True)], 0.95) == "undecided"
    assert gate([compare(run(point()), slow, plan, plan)], 0.95) == "not_met"


def test_a_ratio_without_an_interval_meets_nothing(plan):
    bare = replace(point(), samples_per_s=Measured(value=900.0, low=None, high=None, n=1))
    found = compare(run(point()), run(bare), plan, plan)
    assert found.points[0].ratio.low is None
    assert gate([found], 0.95) == "unjudged"


@pytest.mark.parametrize(("low", "high"), [(1.05, 100.0), (0.01, 0.94)])
def test_a_ratio_that_tells_nothing_is_undecided_on_either_side_of_the_bar(plan, low, high):
    found = compare(run(point()), run(point()), plan, plan)
    wild = replace(found.points[0], ratio=Measured((low * high) ** 0.5, low, high, 3))
    assert gate([replace(found, points=(wild,))], 0.95) == "undecided"


def test_a_run_of_uneven_rounds_is_not_distinguishable(plan):
    wild = replace(point(), samples_per_s=Measured(9000.0, 1500.0, 54000.0, 3))
    assert not compare(run(point()), run(wild), plan, plan).points[0].distinguishable


def test_a_bar_above_one_asks_for_a_gain(plan):
    assert gate([compare(run(point()), run(point()), plan, plan)], 1.3) == "not_met"
    assert gate([compare(run(point()), run(point(step=70.0)), plan, plan)], 1.3) == "met"


def test_what_neither_run_could_measure_is_not_waited_for(plan):
    """One rank cannot hold the whole batch, or a case is out of memory in both."""
    gone = replace(point(), world_size=1, step_ms=None, samples_per_s=None)
    assert gate([compare(run(gone, point()), run(gone, point()), plan, plan)], 0.95) == "met"


def test_what_one_of_them_did_not_measure_is_said(plan):
    lost = replace(point(), world_size=8, step_ms=None, samples_per_s=None)
    whole = replace(point(), world_size=8)
    assert gate([compare(run(point(), whole), run(point(), lost), plan, plan)], 0.95) == "unmeasured"
    slow = point(step=112.0)
    assert gate([compare(run(point(), whole), run(slow, lost), plan, plan)], 0.95) == "not_met"


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


def test_a_world_size_that_the_base_has_and_the_run_lacks_is_not_met(plan):
    """A node that lost half its GPUs measures fewer ranks, and all of these as fast as before."""
    found = compare(run(point(), point(n=8)), run(point()), plan, plan)
    assert found.only_base == (8,)
    assert gate([found], 0.95) == "unmeasured"
    assert gate([compare(run(point()), run(point(), point(n=8)), plan, plan)], 0.95) == "met"


def test_steps_of_unknown_samples_are_no_throughput(plan):
    """Twice the batch in 1.7 times the time is faster, which step times do not show."""
    steps = [replace(point(step=step), samples_per_s=None) for step in (120.0, 202.0)]
    found = compare(*(run(each) for each in steps), plan, plan)
    assert gate([found], 0.95) == "batch_unknown"
    assert "equal batches are assumed" in side_by_side.answer(found)


def test_a_case_that_the_run_lacks_is_not_met(plan):
    cases = tuple(inference(batch, samples_per_s=about(100.0)) for batch in (1, 8))
    base, less = (replace(run(), inference=rows) for rows in (cases, cases[:1]))
    found = compare(base, less, plan, plan)
    assert (found.only_base, gate([found], 0.95)) == ((2,), "unmeasured")
    assert gate([compare(less, base, plan, plan)], 0.95) == "met"
