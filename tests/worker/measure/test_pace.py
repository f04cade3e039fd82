"""How long a block is, when to stop, what the sweep can afford."""

import pytest
from scipy.special import stdtrit
from support.results import measure

from scaling.records.format import CollectiveRow
from scaling.settings.plan import Trial
from scaling.settings.schedule import Block
from scaling.worker.measure.pace import (
    BLOCK_NS_MIN,
    BLOCK_STEPS_MAX,
    CASE_S,
    CASE_STEPS_MIN,
    STEPS_MIN,
    Efficiencies,
    Means,
    Pace,
    block_steps,
    case_lengths,
    case_steps,
    fabric_sizes,
    student,
)

MS = 1_000_000


def test_a_block_outlasts_a_hiccup():
    steps, lead_in = block_steps(measure(), [10 * MS] * 8)
    assert (steps, lead_in) == (BLOCK_NS_MIN // (10 * MS), 3)


def test_very_short_steps_have_a_limit():
    assert block_steps(measure(), [1000] * 8)[0] == BLOCK_STEPS_MAX


def test_long_steps_take_what_was_asked_for():
    assert block_steps(measure(), [100 * MS] * 8) == (8, 3)


def test_the_least_number_of_rounds_fits_into_the_budget():
    step_ns = [500 * MS] * 8
    steps, lead_in = block_steps(measure(), step_ns)
    assert steps >= STEPS_MIN
    assert lead_in < 3
    assert 3 * (steps + lead_in) * sum(step_ns) / 1e9 <= 100


def test_steps_that_never_fit_are_still_measured():
    assert block_steps(measure(), [60_000 * MS] * 8) == (STEPS_MIN, 1)


@pytest.mark.parametrize(("round_s", "goes_on"), [(45.0, True), (60.0, False)])
def test_the_least_number_of_rounds_goes_on_with_shorter_blocks_while_time_is_left(round_s, goes_on):
    pace = Pace(measure(), Efficiencies())
    assert pace.go_on(1, round_s)
    assert pace.go_on(2, 2 * round_s) is goes_on


def test_it_goes_on_while_another_round_fits():
    pace = Pace(measure(), Efficiencies())
    assert [pace.go_on(n, 30.0 * n) for n in (1, 2, 3)] == [True, True, False]


def test_a_round_is_expected_to_last_as_long_as_those_that_measure_the_same():
    """Rounds 0 to 2 and 5 have details and take 30 s, others 5 s."""
    pace = Pace(measure(), Efficiencies(), kind=lambda number: number in (0, 1, 2, 5))
    ends = {1: 30.0, 2: 60.0, 3: 65.0, 4: 70.0}
    assert [pace.go_on(number, at) for number, at in ends.items()] == [True] * 4
    assert not pace.go_on(5, 75.0)  # until 105


def test_blocks_become_shorter_where_the_least_number_of_rounds_would_not_fit():
    pace = Pace(measure(), Efficiencies())
    pace.go_on(1, 20.0)
    assert pace.share(1, 20.0) == 1.0  # two more of 20 s
    pace = Pace(measure(), Efficiencies())
    pace.go_on(1, 60.0)
    assert pace.share(1, 60.0) == pytest.approx(40 / 120)


def test_a_round_ends_before_its_last_block_only_beyond_the_limit():
    pace = Pace(measure(), Efficiencies(), budget_s=100.0, limit_s=120.0)
    assert not pace.over(119.0)
    assert pace.over(121.0)


def test_it_stops_at_the_most_rounds():
    pace = Pace(measure(rounds_max=2), Efficiencies())
    assert [pace.go_on(n, float(n)) for n in (1, 2)] == [True, False]


def test_the_time_left_is_unknown_at_first():
    pace = Pace(measure(), Efficiencies())
    assert pace.seconds_left(0.1, 5.0) is None
    assert pace.seconds_left(1.0, 5.0) == 45.0
    assert pace.seconds_left(1.0, 50.0) == 50.0


def row(size, took_ns):
    return CollectiveRow(0, 0, 2, size, 10, 10, 10 + took_ns)


def test_the_sweep_goes_up_to_its_ceiling():
    sizes = fabric_sizes(2**20, measure(), "gloo", lambda size: row(size, 1000), lambda _key, value: value)
    assert sizes == [2**k for k in range(10, 21, 2)]


def test_the_sweep_ends_with_the_first_size_whose_next_is_too_dear():
    sizes = fabric_sizes(
        2**30, measure(), "gloo", lambda size: row(size, size * 100), lambda _key, value: value
    )
    assert sizes[-1] == 2**22  # 0.4 s; four times as much would be more than 1 % of 100 s


@pytest.mark.parametrize("said", [True, False])
def test_rank_0_decides_for_all(said):
    sizes = fabric_sizes(2**14, measure(), "gloo", lambda size: row(size, 10**12), lambda _key, _value: said)
    assert len(sizes) == (3 if said else 1)


def noted(spread, rounds=4, **changes):
    """A pace after rounds in which the ratio of plain to bare_one alternates by `spread`, and what it knows."""
    trial, known = Trial(world_size=2, hosts=2, batch=32), Efficiencies()
    pace = Pace(measure(**changes), known)
    for number in range(rounds):
        known.note(Block(id=0, round=number, trial=trial, arm="bare_one", solo_rank=0), 40.0 * MS)
        for _ in range(2):
            step_ns = 50.0 * MS * (1 + spread * (-1) ** number)
            known.note(Block(id=0, round=number, trial=trial, arm="plain"), step_ns)
        pace.go_on(number + 1, number + 1.0)
    return pace, known


def test_it_stops_when_the_efficiency_is_known_well_enough():
    pace, known = noted(0.005, target_half_width=0.02)
    assert known.half_width(2) < 0.02
    assert not pace.go_on(4, 4.0)


def test_it_goes_on_while_it_is_not():
    pace, known = noted(0.05, target_half_width=0.02)
    assert known.half_width(2) > 0.02
    assert pace.go_on(4, 4.0)


def test_of_strategies_side_by_side_it_waits_for_all():
    pace, known = noted(0.005, target_half_width=0.02)
    trial = Trial(world_size=2, hosts=2, batch=32)
    for number in range(4):
        step_ns = 70.0 * MS * (1 + 0.05 * (-1) ** number)
        known.note(Block(id=0, round=number, trial=trial, arm="plain", strategy=1), step_ns)
    assert known.half_width(2) < 0.02 < known.half_width(2, strategy=1)
    assert pace.go_on(4, 4.0)


def test_without_a_target_time_decides():
    pace, _ = noted(0.0)
    assert pace.go_on(4, 4.0)
    assert not pace.go_on(5, 99.9)


@pytest.mark.parametrize(("spread", "goes_on"), [(0.005, False), (0.05, True)])
def test_cases_go_on_until_every_mean_is_known_well_enough(spread, goes_on):
    known = Means()
    pace = Pace(measure(target_half_width=0.02), known)
    for number in range(4):
        known.note("one", 10.0 * MS)
        known.note("another", 10.0 * MS * (1 + spread * (-1) ** number))
    assert pace.go_on(4, 4.0) is goes_on


def test_a_stage_has_its_share_of_the_budget():
    pace = Pace(measure(rounds_min=1), Means(), budget_s=10.0)
    assert pace.seconds_left(1.0, 4.0) == 6.0
    assert not pace.go_on(1, 6.0)


def test_a_block_of_a_case_takes_a_second_or_less_of_its_budget():
    steps, lead_in = case_steps(measure(), 10 * MS, budget_s=100.0, blocks=4)
    assert (steps + lead_in) * 10 * MS <= CASE_S * 1e9
    assert case_steps(measure(), 10 * MS, budget_s=1.0, blocks=4)[0] < steps
    assert case_steps(measure(), 60_000 * MS, budget_s=1.0, blocks=4) == (CASE_STEPS_MIN, 0)


def test_cases_with_long_steps_leave_the_rest_of_the_time_to_the_others():
    lengths = case_lengths(measure(), [10 * MS, 4000 * MS], budget_s=40.0, arms=1)
    assert lengths[1] == (CASE_STEPS_MIN, 0)
    round_s = sum((1 + steps + lead_in) * s for (steps, lead_in), s in zip(lengths, (0.01, 4.0), strict=True))
    assert round_s <= 40.0 / 3
    assert lengths[0][0] > 10


@pytest.mark.parametrize("degrees", [3, 5, 10, 30])
def test_students_quantile(degrees):
    assert student(degrees) == pytest.approx(stdtrit(degrees, 0.975), rel=0.01)
