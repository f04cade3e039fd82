"""How long a block is, when to stop, what the sweep can afford."""

from __future__ import annotations

import pytest
from scipy.special import stdtrit

from scaling.plan import Block, Trial
from scaling.spec import Measure
from scaling.worker.pace import BLOCK_NS_MIN, BLOCK_STEPS_MAX, STEPS_MIN, Pace, fabric_sizes, student

MS = 1_000_000


def measure(**changes):
    values = {
        "name": "test",
        "rounds_min": 3,
        "rounds_max": 10,
        "steps": 8,
        "lead_in": 3,
        "warmup_max": 30,
        "target_half_width": None,
        "budget_s": 100.0,
        "fabric_bytes_max": 2**20,
        "step_timeout_s": 60.0,
    }
    return Measure(**(values | changes))


def test_a_block_outlasts_a_hiccup():
    steps, lead_in = Pace(measure(), [10 * MS] * 8).block_steps()
    assert (steps, lead_in) == (BLOCK_NS_MIN // (10 * MS), 3)


def test_very_short_steps_have_a_limit():
    assert Pace(measure(), [1000] * 8).block_steps()[0] == BLOCK_STEPS_MAX


def test_long_steps_take_what_was_asked_for():
    assert Pace(measure(), [100 * MS] * 8).block_steps() == (8, 3)


def test_the_least_number_of_rounds_fits_into_the_budget():
    step_ns = [500 * MS] * 8
    steps, lead_in = Pace(measure(), step_ns).block_steps()
    assert steps >= STEPS_MIN
    assert lead_in < 3
    assert 3 * (steps + lead_in) * sum(step_ns) / 1e9 <= 100


def test_steps_that_never_fit_are_still_measured():
    assert Pace(measure(), [60_000 * MS] * 8).block_steps() == (STEPS_MIN, 1)


@pytest.mark.parametrize(("round_s", "goes_on"), [(45.0, True), (60.0, False)])
def test_the_least_number_of_rounds_may_take_half_as_long_again(round_s, goes_on):
    pace = Pace(measure(), [MS])
    assert pace.go_on(1, round_s)
    assert pace.go_on(2, 2 * round_s) is goes_on


def test_it_goes_on_while_another_round_fits():
    pace = Pace(measure(), [MS])
    assert [pace.go_on(n, 30.0 * n) for n in (1, 2, 3)] == [True, True, False]


def test_it_stops_at_the_most_rounds():
    pace = Pace(measure(rounds_max=2), [MS])
    assert [pace.go_on(n, float(n)) for n in (1, 2)] == [True, False]


def test_the_time_left_is_unknown_at_first():
    pace = Pace(measure(), [MS])
    assert pace.seconds_left(0.1, 5.0) is None
    assert pace.seconds_left(1.0, 5.0) == 45.0
    assert pace.seconds_left(1.0, 50.0) == 50.0


def row(size, took_ns):
    return [0, 0, 2, size, 10, 10, 10 + took_ns]


def test_the_sweep_goes_up_to_its_ceiling():
    sizes = fabric_sizes(2**20, 100.0, lambda size: row(size, 1000), lambda _key, value: value)
    assert sizes == [2**k for k in range(10, 21, 2)]


def test_the_sweep_ends_with_the_first_size_whose_next_is_too_dear():
    sizes = fabric_sizes(2**30, 100.0, lambda size: row(size, size * 100), lambda _key, value: value)
    assert sizes[-1] == 2**22  # 0.4 s; four times as much would be more than 1 % of 100 s


@pytest.mark.parametrize("said", [True, False])
def test_rank_0_decides_for_all(said):
    sizes = fabric_sizes(2**14, 100.0, lambda size: row(size, 10**12), lambda _key, _value: said)
    assert len(sizes) == (3 if said else 1)


def noted(pace, rounds, spread):
    """Rounds in which the ratio of plain to bare_one alternates by `spread`."""
    trial = Trial(world_size=2, hosts=2, batch=32)
    for number in range(rounds):
        pace.note(Block(id=0, round=number, trial=trial, arm="bare_one", solo_rank=0), 40.0 * MS)
        for _ in range(2):
            pace.note(
                Block(id=0, round=number, trial=trial, arm="plain"), 50.0 * MS * (1 + spread * (-1) ** number)
            )
        pace.go_on(number + 1, number + 1.0)
    return pace


def test_it_stops_when_the_efficiency_is_known_well_enough():
    precise = noted(Pace(measure(target_half_width=0.02), [50 * MS] * 8), rounds=4, spread=0.005)
    assert precise.half_width(2) < 0.02
    assert not precise.go_on(4, 4.0)


def test_it_goes_on_while_it_is_not():
    vague = noted(Pace(measure(target_half_width=0.02), [50 * MS] * 8), rounds=4, spread=0.05)
    assert vague.half_width(2) > 0.02
    assert vague.go_on(4, 4.0)


def test_without_a_target_time_decides():
    quick = noted(Pace(measure(), [50 * MS] * 8), rounds=4, spread=0.0)
    assert quick.go_on(4, 4.0)
    assert not quick.go_on(5, 99.9)


@pytest.mark.parametrize("degrees", [3, 5, 10, 30])
def test_students_quantile(degrees):
    assert student(degrees) == pytest.approx(stdtrit(degrees, 0.975), rel=0.01)
