"""Who is late, by what it costs."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from scaling.analysis.decompose.quantities import Cycle, TrialRecords
from scaling.analysis.decompose.stragglers import Late, Light, _slow_alone, late_ranks
from scaling.analysis.network.replay import Replay
from scaling.analysis.results import Measured
from scaling.analysis.statistics.rounds import Rounds
from scaling.settings.plan import Trial

MS = 1e6
COMPUTE, TRANSFER = 40 * MS, 10 * MS
BUCKET = 30 * MS  # when a rank on time is ready with its one bucket


def find(
    extra_ms, *, rounds=8, noise_ms=0.0, early_ms=0.0, floor=0.0, seed=0, hosts=(), stamps="both", slow=()
):
    """late_ranks of steps in which rank r takes extra_ms[r] longer before its bucket is ready.

    `early_ms`: of link time for another bucket, with which all ranks are ready at once; `hosts`: of each rank.
    `stamps`: light steps, detailed ones, or both. `slow`: (round, rank, ms) of single steps that take longer.
    """
    n, steps = len(extra_ms), 5
    rng = np.random.default_rng(seed)
    index = pl.DataFrame({"launch": [0] * rounds, "round": list(range(rounds))})
    cycles, light = [], Light(own_ns={}, waited={}, alike={})
    for number in range(rounds):
        extra = np.array(extra_ms) * MS + noise_ms * MS * rng.standard_normal((steps, n))
        for _, rank, more_ms in (one for one in slow if one[0] == number):
            extra[0, rank] += more_ms * MS
        ready = np.stack([0 * extra, BUCKET + extra] if early_ms else [BUCKET + extra], axis=2)
        transfer = np.array([early_ms * MS, TRANSFER] if early_ms else [TRANSFER])
        light.own_ns[0, number] = COMPUTE + extra
        light.waited[0, number] = (extra.max(axis=1, keepdims=True) - extra).mean(axis=0)
        cycles.append(
            Cycle(
                key=(0, number),
                replay=Replay(
                    ready=ready,
                    compute_end=COMPUTE + extra,
                    transfer=np.tile(transfer, (steps, 1)),
                    start=np.zeros((steps, n)),
                ),
                waited=extra.max(axis=1, keepdims=True) - extra,
                **dict.fromkeys(("input", "step", "moving"), np.zeros((steps, n))),
            )
        )
    records = TrialRecords(
        trial=Trial(world_size=n, hosts=n, batch=1),
        index=index,
        ranks=pl.DataFrame(),
        cycles=() if stamps == "light" else tuple(cycles),
        light=None if stamps == "detailed" else light,
        merged={},
        bucket_bytes=(1,),
    )
    plain = np.full(rounds, COMPUTE + max(extra_ms) * MS)
    return late_ranks(records, Rounds({"plain": plain}, records.launches), floor, hosts)


@pytest.mark.parametrize(
    ("longer_ms", "noise_ms", "by_itself"),
    [(18, 1, True), (0, 1, False), (8, 1, None), (15, 40, None), (0, 40, None)],
)
def test_whether_a_rank_is_slow_alone_too_is_said_where_that_is_shown(longer_ms, noise_ms, by_itself):
    noise = noise_ms * MS * np.array([1.0, -1.0, 0.5, -0.5])[:, None]
    alone = {1: 100 * MS + longer_ms * MS + noise, 0: np.full((4, 1), 100 * MS)}
    records = SimpleNamespace(arm=lambda _arm, ranks: {"step": alone[min(ranks)][:, 0]})
    cost = Measured(20 * MS, 19 * MS, 21 * MS, 4)
    late = Late(ranks=(1,), cost_ns=cost, skew_ns=cost)
    assert _slow_alone(late, records, {0}, Rounds({}, np.zeros(4, dtype=np.int64))) is by_itself


def test_equal_ranks_are_not_late():
    assert find([0, 0, 0, 0]) is None


def test_chance_makes_no_rank_late():
    assert all(find([0, 0, 0, 0], noise_ms=0.2, seed=seed) is None for seed in range(10))


@pytest.mark.parametrize("stamps", ["both", "light", "detailed"])
def test_a_late_rank_costs_what_the_step_is_longer_by(stamps):
    late = find([0, 0, 30, 0], stamps=stamps)
    assert late.ranks == (2,)
    assert late.cost_ns.value == pytest.approx(30 * MS)
    assert late.skew_ns.value == pytest.approx(30 * MS)


@pytest.mark.parametrize("slow", [(2, 0, 100), (2, 0, 1000), (2, 1, 1000)])
def test_a_single_slow_step_neither_hides_a_rank_that_is_late_in_every_step_nor_adds_to_its_cost(slow):
    late = find([0, 20], noise_ms=0.3, slow=[slow], stamps="light")
    assert late.ranks == (1,)
    assert late.cost_ns.value == pytest.approx(20 * MS, rel=0.03)


def test_single_slow_steps_make_no_rank_late():
    slow = [(1, 1, 200), (4, 1, 900), (6, 1, 400)]
    assert all(find([0, 0], noise_ms=0.3, slow=slow, stamps="light", seed=seed) is None for seed in range(5))


def test_of_two_ranks_one_can_be_late():
    assert find([20, 0]).ranks == (0,)


def test_two_equally_late_ranks_of_four_are_both_found():
    late = find([0, 30, 0, 30])
    assert set(late.ranks) == {1, 3}
    assert late.cost_ns.value == pytest.approx(30 * MS)


def test_two_late_ranks_are_named_with_the_latest_first():
    late = find([0, 20, 0, 30])
    assert late.ranks == (3, 1)
    assert late.cost_ns.value == pytest.approx(30 * MS)  # the step without either


def test_two_that_only_together_cost_enough_are_found():
    assert set(find([0.3, 0.6, 0, 0]).ranks) == {0, 1}  # of 40 ms; either alone saves 0.3 at most


def test_four_late_ranks_of_eight_are_found():
    assert set(find([0, 30, 0, 30, 0, 30, 0, 30]).ranks) == {1, 3, 5, 7}


def test_where_most_are_late_none_is():
    assert find([30, 30, 30, 0]) is None


def test_lateness_under_a_link_that_is_busy_anyway_costs_nothing():
    assert find([0, 0, 8, 0], early_ms=60.0) is None
    assert find([0, 0, 40, 0], early_ms=60.0).cost_ns.value == pytest.approx(10 * MS)  # 80 against 70


def test_without_details_it_is_not_seen_what_the_link_hides():
    assert find([0, 0, 40, 0], early_ms=60.0, stamps="light").cost_ns.value == pytest.approx(40 * MS)


@pytest.mark.parametrize("floor", [0.0, 0.15])
def test_ranks_that_are_slow_by_turns_are_not_late(floor):
    """Without either's noise the step would be shorter, so each costs something; in the mean neither is behind."""
    assert find([0, 0], noise_ms=4, rounds=4, floor=floor) is None


@pytest.mark.parametrize("floor", [0.05, 0.15])
def test_a_rank_that_is_surely_behind_is_late_in_every_noise_floor(floor):
    assert find([0, 4, 0, 0], floor=floor).ranks == (1,)  # 4 of 44 ms
    assert find([0, 4, 0, 0], floor=floor, noise_ms=8, rounds=4) is None
    assert find([0, 0.3, 0, 0], floor=floor) is None  # less than FLOOR


def test_two_rounds_are_too_few_to_name_anyone():
    assert find([0, 30, 0, 0], rounds=2) is None


def test_a_single_rank_is_no_straggler():
    assert find([30]) is None


# Hosts

TWO_HOSTS = [0] * 8 + [1] * 8


def test_a_host_all_of_whose_many_ranks_are_late_is_found():
    extra = [0] * 8 + [20, 20, 20, 25, 20, 20, 20, 20]
    late = find(extra, hosts=TWO_HOSTS)
    assert set(late.ranks) == set(range(8, 16))
    assert (late.ranks[0], late.host) == (11, 1)
    assert late.cost_ns.value == pytest.approx(25 * MS)
    assert late.skew_ns.value == pytest.approx(25 * MS)


def test_without_hosts_no_few_of_them_cost_anything():
    assert find([0] * 8 + [20] * 8) is None


def test_a_rank_that_is_later_than_its_late_host_comes_first():
    late = find([0] * 8 + [20, 20, 20, 60, 20, 20, 20, 20], hosts=TWO_HOSTS, noise_ms=0.1)
    assert set(late.ranks) == set(range(8, 16))
    assert (late.ranks[0], late.host) == (11, 1)
    assert late.cost_ns.value == pytest.approx(60 * MS, rel=0.02)


def test_a_late_rank_of_another_host_is_found_beside_a_late_host():
    late = find([0, 0, 0, 0, 0, 40] + [0] * 10 + [20] * 6, hosts=[0] * 8 + [1] * 8 + [2] * 6)
    assert set(late.ranks) == {5, *range(16, 22)}
    assert (late.ranks[0], late.host) == (5, None)  # of its host it alone is late


def test_two_of_four_hosts_are_both_found():
    late = find([0] * 6 + [20] * 12 + [0] * 6, hosts=[r // 6 for r in range(24)])
    assert set(late.ranks) == set(range(6, 18))


def test_where_most_hosts_are_late_none_is():
    assert find([0] * 6 + [20] * 12, hosts=[r // 6 for r in range(18)]) is None


def test_one_late_rank_is_not_its_host():
    late = find([0] * 8 + [20] + [0] * 7, hosts=TWO_HOSTS)
    assert (late.ranks, late.host) == ((8,), None)


def test_a_host_of_one_rank_is_not_named_beside_it():
    late = find([0, 20, 0, 0], hosts=[0, 1, 2, 3])
    assert (late.ranks, late.host) == ((1,), None)


def test_chance_makes_no_host_late():
    for seed in range(10):
        assert find([0] * 16, noise_ms=0.2, seed=seed, hosts=TWO_HOSTS) is None
