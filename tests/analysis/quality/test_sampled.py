"""Details in some rounds only: the same figures within their intervals, n of what they come from, and a word of it."""

from collections import Counter
from dataclasses import replace

import pytest

from scaling.settings.plan import make_plan
from scaling.settings.sample import Traffic, chosen, share_bytes, spread

ROUNDS, DETAILED = 40, 10


@pytest.fixture(scope="module")
def truth(cluster):
    """Four ranks of which one is late, on a machine whose pace drifts by tens of percent over the run."""
    return cluster.Truth(
        world_sizes=(1, 4),
        rounds=ROUNDS,
        drift=0.03,
        stragglers=(cluster.Straggler(rank=2, extra_ns=4e6, phase="forward"),),
    )


@pytest.fixture(scope="module")
def whole(measure, truth):
    return measure(truth)


@pytest.fixture(scope="module")
def sampled(measure, truth):
    return measure(replace(truth, detailed=spread(DETAILED, ROUNDS)))


def holds(measured, truth):
    return measured.low <= truth <= measured.high


def test_step_and_efficiency_come_from_all_rounds(whole, sampled):
    point, expected = sampled.point(4), sampled.expected.points[4]
    assert point.efficiency.n == point.step_ms.n == point.overhead.probe_over_plain.n == ROUNDS
    assert holds(point.efficiency, expected.efficiency)
    assert point.efficiency.half_width < 1.5 * whole.point(4).efficiency.half_width
    assert point.efficiency.value == pytest.approx(whole.point(4).efficiency.value, abs=0.005)


def test_the_late_rank_is_found_among_all_ranks(sampled):
    straggler = sampled.point(4).straggler
    assert (straggler.rank, straggler.phase, straggler.cost_ms.n) == (2, "forward", DETAILED)
    assert holds(straggler.cost_ms, sampled.expected.points[4].late_cost_ns / 1e6)


def test_what_needs_details_says_how_many_rounds_it_comes_from(whole, sampled):
    point, expected = sampled.point(4), sampled.expected.points[4]
    assert point.comm.busbw_gbit_s.n == point.closure.n == point.efficiency_loaded.n == DETAILED
    assert whole.point(4).comm.busbw_gbit_s.n == ROUNDS
    assert holds(point.comm.busbw_gbit_s, expected.busbw_gbit_s)
    assert point.closure.value == pytest.approx(1, abs=0.01)
    assert [b.bytes for b in point.comm.buckets] == [b.bytes for b in whole.point(4).comm.buckets]


@pytest.mark.parametrize(
    "cause", ["neighbours", "strategy_overhead", "overlap", "straggler", "link_bandwidth", "unexplained"]
)
def test_causes_compare_arms_of_the_same_rounds_so_that_drift_cancels(sampled, cause):
    """Against plain steps of all rounds, neighbours would read 0.056 +- 0.042 from six rounds of this run."""
    found = getattr(sampled.point(4).loss, cause)
    assert found.n == DETAILED
    assert holds(found, sampled.expected.points[4].loss.get(cause, 0.0))
    assert found.half_width < 0.015


def test_causes_add_up_to_the_loss_of_all_rounds(sampled):
    point = sampled.point(4)
    causes = [
        "neighbours",
        "strategy_overhead",
        "straggler",
        "link_latency",
        "link_bandwidth",
        "overlap",
        "input",
        "host",
        "unexplained",
    ]
    of = [getattr(point.loss, cause) for cause in causes]
    assert sum(one.value for one in of if one) == pytest.approx(1 - point.efficiency.value, abs=1e-9)


def test_it_is_said_in_quality(whole, sampled):
    (said,) = [line for line in sampled.analysis.quality.warnings if line.startswith("details in")]
    assert said.startswith(
        "details in 10 of 40 rounds, chosen before the run: with more, rank files would take"
    )
    assert sampled.analysis.quality.dropped_blocks == 0
    assert not [line for line in whole.analysis.quality.warnings if "details" in line]


def test_intervals_hold_the_truth_whatever_the_noise(measure, truth):
    """The pooled error of bandwidth over runs is small against one run's interval: the sample has no bias."""
    runs = [
        measure(replace(truth, rounds=20, detailed=spread(6, 20), drift=0.01, seed=seed)) for seed in range(8)
    ]
    expected = runs[0].expected.points[4]
    busbw = [run.point(4).comm.busbw_gbit_s for run in runs]
    mean = sum(one.value for one in busbw) / len(busbw)
    assert mean == pytest.approx(expected.busbw_gbit_s, rel=0.01)
    assert sum(holds(one, expected.busbw_gbit_s) for one in busbw) >= 7
    assert sum(holds(run.point(4).efficiency, expected.efficiency) for run in runs) >= 7
    assert all(run.point(4).straggler.rank == 2 for run in runs)


def test_the_files_of_each_host_stay_within_its_share(simulate, cluster, tmp_path):
    """16 ranks on two hosts, written as workers do, with rounds that are chosen from sizes alone."""
    buckets = tuple(cluster.Bucket(bytes=2**20, at=(k + 1) / 12) for k in range(12))
    truth = cluster.Truth(world_sizes=(1, 8, 16), hosts=2, ranks_per_host=8, rounds=20, buckets=buckets)
    spec = cluster.spec_of(truth)
    spec = replace(spec, measure=replace(spec.measure, records_bytes_max=5 * 2**20))
    plan = make_plan(spec, run_id="run", created="", version="")
    traffic = dict.fromkeys(truth.world_sizes, Traffic(calls=12, swept=40, tensors=12))
    asked = {"steps": truth.steps, "rounds_s": 1e6}
    content = chosen(plan, plan.trials, plan.content, traffic, lambda _content: 1.0, **asked)
    assert 6 < len(content.detailed) < 20

    def written(name, detailed):
        simulate(replace(truth, detailed=detailed), tmp_path / name)
        of_host = Counter()
        for path in (tmp_path / name).glob("launches/0/rank-*.jsonl"):
            of_host[plan.spec.topology.host_of(int(path.stem.split("-")[1]))] += path.stat().st_size
        return of_host

    share = share_bytes(plan)
    assert share == 2.5 * 2**20
    sampled, whole = written("sampled", content.detailed), written("whole", ())
    assert 0.5 * share < max(sampled.values()) <= share < max(whole.values())


def test_one_round_with_details_tells_the_bandwidth_and_light_steps_the_cause(measure, cluster):
    """A budget that holds details once: causes come from all light steps, and no interval rests on one round."""
    slow = cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=3, steps=2, beta_ns=50.0, detailed=(0,))
    measured = measure(slow)
    point, (verdict,) = measured.point(2), measured.analysis.verdicts
    assert (verdict.cause, verdict.confidence) == ("communication", "high")
    assert "details fitted into 1 of 3 rounds, too few for an interval" in verdict.evidence[-1]
    assert point.comm.busbw_gbit_s.value == pytest.approx(0.16, rel=0.05)
    assert (point.comm.busbw_gbit_s.n, point.comm.busbw_gbit_s.interval) == (1, None)
    assert point.efficiency.n == 3
    assert holds(point.efficiency, measured.expected.points[2].efficiency)
    assert measured.analysis.quality.warnings[0].startswith(
        "details in 1 of 3 rounds, chosen before the run: the bud"
    )
