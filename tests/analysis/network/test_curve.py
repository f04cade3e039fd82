"""The size sweep and its alpha-beta fit.

A curve between its points.
"""

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.analysis.network.curve import (
    AlphaBeta,
    Points,
    fit,
    host_latency,
    level,
    sweep_rounds,
    sweep_times,
)
from scaling.analysis.statistics.rounds import Means, Rounds, UnknownQuantityError

KIB, MIB = 2**10, 2**20
SWEEP = tuple(KIB * 4**k for k in range(8))  # 1 KiB ... 16 MiB
ALPHA_NS, BETA_NS = 40e3, 0.8


def exact(size, n):
    return 2 * (n - 1) * (ALPHA_NS + size * BETA_NS / n)


def fitted(times, n):
    """The fit of one round's times by size."""
    means = Means({str(size): np.array([ns]) for size, ns in times.items()}, np.ones((1, 1)))
    return fit(means, tuple(sorted(times)), n)


def close_to_the_truth(found, rel=1e-9):
    return found.alpha_ns[0] == pytest.approx(ALPHA_NS, rel=rel) and found.beta_ns[0] == pytest.approx(
        BETA_NS, rel=rel
    )


# Fit


@pytest.mark.parametrize("n", [2, 4, 64])
def test_alpha_and_beta_come_back_from_exact_times(n):
    found = fitted({size: exact(size, n) for size in SWEEP}, n)
    assert close_to_the_truth(found)
    assert found.time_ns(3 * MIB) == pytest.approx(exact(3 * MIB, n))


@pytest.mark.parametrize(
    "sizes", [SWEEP[:5], SWEEP[:4], SWEEP[:3]], ids=["one large size", "up to 64 KiB", "up to 16 KiB"]
)
def test_a_short_sweep_gives_them_too(sizes):
    assert close_to_the_truth(fitted({size: exact(size, 4) for size in sizes}, 4))


def test_one_size_alone_cannot_tell_latency_from_bandwidth():
    with pytest.raises(UnknownQuantityError):
        fitted({MIB: exact(MIB, 4)}, 4)


def test_no_size_at_all_is_unknown():
    with pytest.raises(UnknownQuantityError):
        fitted({}, 4)


def test_a_shapers_free_burst_does_not_bend_beta():
    # The first bytes of a message pass a token bucket at once: large messages are all this much faster.
    free = 100e3
    found = fitted({size: exact(size, 2) - (free if size >= 256 * KIB else 0) for size in SWEEP}, 2)
    assert close_to_the_truth(found)


def test_errors_count_by_their_share_and_not_by_their_size():
    times = {size: exact(size, 2) for size in SWEEP}
    times[SWEEP[-1]] *= 1.1  # in absolute terms this one message would outweigh all others
    assert fitted(times, 2).beta_ns[0] == pytest.approx(BETA_NS, rel=0.05)


def test_alpha_is_never_negative():
    times = {size: exact(size, 2) for size in SWEEP}
    times |= dict.fromkeys(SWEEP[:3], 1.0)
    assert fitted(times, 2).alpha_ns[0] == 0


def test_times_that_do_not_grow_with_their_bytes_tell_no_bandwidth(curve_of):
    found, _ = curve_of(4, times=dict.fromkeys(SWEEP, 40e3))
    assert found.busbw_gbit_s is None
    assert fitted(dict.fromkeys(SWEEP, 40e3), 2).busbw_gbit_s[0] > 1e3
    shrinking = {size: 40e3 - k for k, size in enumerate(SWEEP)}
    assert fitted(shrinking, 2).busbw_gbit_s[0] == np.inf


# Sweep


def row(rank, size, launch, done, *, number=0, step=0, seq=0, n=2, calls=1):
    return {
        "launch": 0,
        "round": number,
        "block": number * 1000,
        "rank": rank,
        "world_size": n,
        "step": step,
        "seq": seq,
        "kind": 0,
        "bytes": size,
        "launch_ns": launch,
        "done_ns": done,
        "calls": calls,
    }


def test_a_message_takes_from_the_latest_launch_to_the_latest_done():
    fabric = pl.DataFrame([row(0, KIB, 100, 190), row(1, KIB, 130, 200)])
    assert sweep_times(fabric, 2)["time_ns"].to_list() == [70]


def test_repetitions_are_averaged_within_a_round():
    rows = [row(rank, KIB, 0, 10 * (step + 1), step=step) for rank in (0, 1) for step in (0, 1, 2)]
    rows += [row(rank, KIB, 0, 70, number=1) for rank in (0, 1)]
    assert sweep_times(pl.DataFrame(rows), 2)["time_ns"].to_list() == [20, 70]


def test_a_message_that_a_rank_did_not_record_is_left_out():
    rows = [row(0, KIB, 0, 10), row(0, 4 * KIB, 0, 20, seq=1), row(1, 4 * KIB, 0, 20, seq=1)]
    assert sweep_times(pl.DataFrame(rows), 2)["bytes"].to_list() == [4 * KIB]


def test_of_many_enqueued_at_once_one_takes_its_share_and_the_rest_of_a_single_one_is_the_hosts():
    rows = [
        row(rank, size, 0, took, step=step, calls=calls)
        for rank in (0, 1)
        for step, (size, took, calls) in enumerate(
            [(KIB, 50, 1), (KIB, 200, 20), (4 * KIB, 80, 1), (4 * KIB, 400, 20)]
        )
    ]
    times = sweep_times(pl.DataFrame(rows), 2)
    assert times.select("bytes", "time_ns").rows() == [(KIB, 10), (4 * KIB, 20)]
    assert host_latency(pl.DataFrame(rows), 2)["time_ns"].to_list() == [(40 + 60) / 2]


def test_without_many_at_once_the_hosts_latency_is_not_known():
    assert host_latency(pl.DataFrame([row(rank, KIB, 0, 10) for rank in (0, 1)]), 2).is_empty()


def test_other_world_sizes_are_other_curves():
    times = sweep_times(pl.DataFrame([row(0, KIB, 0, 10, n=4)]), 2)
    assert times.is_empty()
    assert sweep_rounds(times, seed=0) is None


def test_the_curve_is_that_of_the_first_sub_group():
    fabric = [row(rank, KIB, 0, 10 if rank < 2 else 90) for rank in range(4)]
    assert sweep_times(pl.DataFrame(fabric), 2)["time_ns"].to_list() == [10]


def test_a_size_that_a_round_lacks_is_unknown_there():
    rows = [row(rank, size, 0, 10, seq=k) for rank in (0, 1) for k, size in enumerate((KIB, 4 * KIB))]
    rows += [row(rank, KIB, 0, 30, number=1) for rank in (0, 1)]
    rounds, sizes = sweep_rounds(sweep_times(pl.DataFrame(rows), 2), seed=0)
    assert sizes == (KIB, 4 * KIB)
    assert rounds.measure(str(KIB)).value == 20
    assert rounds.measure(str(4 * KIB)).value == 10


# Curve


@pytest.fixture
def curve_of(cluster):
    """curve_of(n, ranks_per_host, times, bound_ns): the level of one world size, the same times in eight rounds."""

    def made(n, ranks_per_host=1, times=None, bound_ns=0):
        truth = cluster.Truth(world_sizes=(n,), ranks_per_host=ranks_per_host, hosts=n // ranks_per_host)
        plan = cluster.plan_of(truth)
        times = times or {size: exact(size, n) for size in SWEEP}
        rounds = Rounds({str(s): np.full(8, t) for s, t in times.items()}, np.zeros(8, dtype=np.int64))
        return level({"all_reduce": (rounds, tuple(times))}, plan, n, bound_ns), plan.spec.topology.link

    return made


def test_a_curve_speaks_nccl_tests_terms(curve_of):
    found, _ = curve_of(4)
    last = found.curve[-1]
    assert (last.collective, last.bytes) == ("all_reduce", SWEEP[-1])
    assert last.time_us.value == pytest.approx(exact(SWEEP[-1], 4) / 1e3)
    assert last.algbw_gbit_s.value == pytest.approx(SWEEP[-1] * 8 / exact(SWEEP[-1], 4))
    assert last.busbw_gbit_s.value == pytest.approx(1.5 * last.algbw_gbit_s.value)
    assert found.alpha_us.value == pytest.approx(ALPHA_NS / 1e3)
    assert found.busbw_gbit_s.value == pytest.approx(8 / BETA_NS)


def test_busbw_tends_to_the_fitted_bandwidth(curve_of):
    found, _ = curve_of(4)
    shares = [p.busbw_gbit_s.value / found.busbw_gbit_s.value for p in found.curve]
    assert shares == sorted(shares)
    assert 0.98 < shares[-1] < 1


def test_a_nominal_link_is_known_between_hosts_only(curve_of):
    network, link = curve_of(4)
    assert (network.name, network.nominal_gbit_s) == ("network", link.nominal_bit_s / 1e9)
    host, _ = curve_of(4, ranks_per_host=4)
    assert (host.name, host.nominal_gbit_s) == ("host", None)


def test_other_collectives_stand_beside_and_do_not_enter_the_fit(cluster):
    plan = cluster.plan_of(cluster.Truth(world_sizes=(4,)))
    one = Rounds({str(s): np.full(8, exact(s, 4)) for s in SWEEP}, np.zeros(8, dtype=np.int64))
    two = Rounds({str(MIB): np.full(8, 1e6)}, np.zeros(8, dtype=np.int64))
    found = level({"all_reduce": (one, SWEEP), "broadcast": (two, (MIB,))}, plan, 4)
    assert found.alpha_us.value == pytest.approx(ALPHA_NS / 1e3)
    assert found.curve[-1].collective == "broadcast"
    assert found.curve[-1].busbw_gbit_s.value == pytest.approx(MIB * 8 / 1e6)


def test_one_size_gives_a_curve_and_no_fit(curve_of):
    found, _ = curve_of(2, times={MIB: exact(MIB, 2)})
    assert found.curve[0].time_us.value == pytest.approx(exact(MIB, 2) / 1e3)
    assert (found.alpha_us, found.busbw_gbit_s) == (None, None)


def test_times_of_arrays_are_arrays():
    link = AlphaBeta(2, np.array([1.0, 2.0]), np.array([0.0, 1.0]))
    assert link.time_ns(10.0).tolist() == [2.0, 14.0]


# Clocks


def reach(number):
    """How far an interval reaches to either side."""
    return number.value - number.low, number.high - number.value


def test_what_the_clocks_may_be_off_by_is_in_the_interval_of_every_time(curve_of):
    bound_ns = 10_000
    found, _ = curve_of(4, bound_ns=bound_ns)
    for point in found.curve:
        assert reach(point.time_us) == pytest.approx((bound_ns / 1e3,) * 2)
        for rate in (point.algbw_gbit_s, point.busbw_gbit_s):
            share = bound_ns / 1e3 / point.time_us.value
            assert reach(rate) == pytest.approx((share * rate.value,) * 2)
    assert reach(found.alpha_us) == pytest.approx((bound_ns / 1e3 / 6,) * 2)  # 2 (n - 1) hops
    assert reach(found.busbw_gbit_s) == pytest.approx((0, 0))  # the same in all messages: a slope without it


def test_no_time_and_no_rate_is_below_zero_however_far_the_clocks_are_apart(curve_of):
    found, _ = curve_of(2, bound_ns=10**9)
    assert {point.time_us.low for point in found.curve} == {0}
    assert {point.busbw_gbit_s.low for point in found.curve} == {0}
    assert found.alpha_us.low == 0


def test_clocks_that_were_corrected_leave_latency_known_to_their_bound(measure, cluster):
    """One rank's offset is measured some microseconds wrong, alike in every round."""
    truth = cluster.Truth(world_sizes=(2,), rounds=6, alpha_ns=5e3, clock_bound_ns=20_000)
    (right,) = measure(truth).analysis.fabric.levels
    (level,) = measure(replace(truth, clock_offset_ns=(0, 10**9))).analysis.fabric.levels
    assert right.alpha_us.half_width < 1
    assert level.alpha_us.high - level.alpha_us.value >= 10  # 20 us over two hops
    assert level.alpha_us.low <= truth.alpha_ns / 1e3 <= level.alpha_us.high
    assert level.curve[0].time_us.high - level.curve[0].time_us.value >= 20


def points(times, sizes=None):
    sizes = sizes or tuple(1024 * 4**k for k in range(len(times)))
    return Points(sizes=tuple(sizes), times=np.array([times], dtype=float))


def test_at_its_own_sizes_it_is_what_was_measured():
    curve = points([5, 6, 9, 30, 100])
    assert [curve.at(size)[0] for size in curve.sizes] == pytest.approx([5, 6, 9, 30, 100])


def test_below_the_time_stays_and_above_the_bandwidth_does():
    curve = points([5, 9, 30])
    assert curve.at(8)[0] == 5
    assert curve.at(3 * curve.sizes[-1])[0] == pytest.approx(90)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=8))
def test_between_two_points_it_stays_between_their_times(times):
    curve = points(times)
    for (low, a), (high, b) in itertools.pairwise(zip(curve.sizes, times, strict=True)):
        found = [curve.at(size)[0] for size in np.linspace(low, high, 9)]
        assert found == pytest.approx(sorted(found, reverse=b < a))
        assert min(found) >= min(a, b) * (1 - 1e-9)
        assert max(found) <= max(a, b) * (1 + 1e-9)


def test_it_is_the_same_curve_as_scipys():
    from scipy.interpolate import PchipInterpolator  # takes a second to import

    rng = np.random.default_rng(0)
    for _ in range(20):
        times = np.exp(rng.uniform(0, 5, 7))
        curve = points(times.tolist())
        other = PchipInterpolator(np.log(curve.sizes), np.log(times))
        sizes = np.exp(rng.uniform(np.log(curve.sizes[0]), np.log(curve.sizes[-1]), 9))
        assert [curve.at(size)[0] for size in sizes] == pytest.approx(np.exp(other(np.log(sizes))))


def test_a_latency_and_a_bandwidth_are_followed_where_points_are_a_factor_of_four_apart():
    def time(size):
        return 20 + size / 1e4

    curve = points([time(1024 * 4**k) for k in range(10)])
    off = [abs(curve.at(s)[0] / time(s) - 1) for s in (3e3, 3e4, 2e5, 7e5, 3e6, 5e7)]
    assert max(off) < 0.04


def test_resampled_values_go_through_alike():
    both = Points(sizes=(1, 4, 16), times=np.array([[1.0, 2.0, 8.0], [2.0, 4.0, 16.0]]))
    assert both.at(7)[1] == pytest.approx(2 * both.at(7)[0])
