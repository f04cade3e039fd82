from dataclasses import fields, replace
from html import unescape

import pytest
from support.reports import markdown, page, print_analysis, printed
from support.results import about

from scaling.analysis.results import Fabric, Goodput, Loss, Measured, NamedPhase, TokenBalance, TrialStatus
from scaling.report import findings, text
from scaling.report.answer import answer


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (65.4, 67.0, "66.2 ms ±0.8"),
        (65.0, 67.4, "66.2 ms ±1.2"),
        (65.1, 67.9, "66.2 ms [65.1, 67.9]"),
        (65.13, 67.36, "66.2 ms ±1.1"),
        (60.0, 72.4, "66 ms ±6"),
        (None, None, "66.2 ms"),
        (66.2, 66.2, "66.2 ms"),
        (66.19999, 66.20001, "66.20 ms ±0.01"),
    ],
)
def test_a_quantity_shows_the_digits_its_interval_bears(low, high, expected):
    assert text.quantity(Measured(66.2, low, high), "ms") == expected


def test_a_figure_whose_interval_tells_nothing_is_unknown():
    wild = Measured(0.33, 0.01, 9.53, 3)
    assert text.percent(wild) == text.cell(wild, 100) == text.value_of(wild, 100) == "unknown"
    assert text.change(wild) == "unknown"
    assert text.signed(text.quantity(wild, "ms")) == "unknown"


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (Measured(0.612, 0.60, 0.624), "61.2 % ±1.2"),
        (Measured(0.66, 0.63, 0.69), "66 % ±3"),
        (Measured(-0.0002, -0.005, 0.0046), "0.0 % ±0.5"),
        (Measured(0.0), "0 %"),
        (Measured(-7.2e-9), "0.00 %"),
        (None, "-"),
    ],
)
def test_percent(measured, expected):
    assert text.percent(measured) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1234.5, "1234"),
        (66.25, "66.2"),
        (0.012345, "0.0123"),
        (0, "0"),
        (-0.4, "-0.400"),
        (float("nan"), "-"),
    ],
)
def test_a_number_without_interval_has_three_digits(value, expected):
    assert text.number(value) == expected


def test_a_cell_and_a_sentence_show_the_same_digits():
    measured = Measured(0.1812, 0.1797, 0.1827)
    assert text.cell(measured) == "0.1812 ±0.0015"
    assert text.quantity(measured, "Gbit/s") == "0.1812 Gbit/s ±0.0015"
    assert text.value_of(measured) == "0.1812"


def test_a_ratio_near_one_reads_as_a_signed_change():
    assert text.change(Measured(1.003, 0.999, 1.007)) == "+0.3 % ±0.4"
    assert text.change(Measured(0.98, 0.976, 0.984)) == "-2.0 % ±0.4"
    assert text.change(None) == "-"


def test_the_answer_names_the_main_cause(sample):
    assert answer(sample.good()) == (
        "At 4 ranks the run keeps 57.4 % ±1.2 of ideal; "
        "most of the loss, 38.3 % of the step, is link bandwidth."
    )


@pytest.mark.parametrize(
    ("share", "unexplained", "confidence", "said"),
    [
        (
            Measured(0.383, 0.36, 0.40),
            0.0,
            "high",
            "; most of the loss, 38 % of the step, is link bandwidth.",
        ),
        (
            Measured(0.383, 0.20, 0.55),
            0.0,
            "high",
            "; the largest part of the loss, 38 % of the step, is link",
        ),
        (
            Measured(0.15, 0.14, 0.16),
            0.2,
            "high",
            "; 15.0 % of the step is shown to be lost to link bandwidth.",
        ),
        (Measured(0.383, 0.36, 0.40), 0.0, "low", " of the step, is link bandwidth (a hint only)."),
    ],
)
def test_the_answer_says_no_more_of_the_main_cause_than_is_shown(
    sample, share, unexplained, confidence, said
):
    """`most` where the whole interval is more than half of what is lost, `the largest part` where nothing is larger."""
    good = sample.good()
    loss = replace(good.points[-1].loss, link_bandwidth=share, unexplained=Measured(unexplained))
    verdict = replace(good.verdicts[0], share=share, confidence=confidence)
    points = (*good.points[:-1], replace(good.points[-1], loss=loss))
    assert said in answer(replace(good, points=points, verdicts=(verdict,)))


@pytest.mark.parametrize(
    ("efficiency", "said"),
    [
        (Measured(0.574, 0.562, 0.586), "; most of the loss, 38 % of the step"),
        (
            Measured(0.574, 0.20, 0.80),
            "; the largest part of the loss, 38 % of the step",
        ),  # it may be 80 % that is lost
        (
            Measured(0.97, 0.96, 0.98),
            "; 38 % of the step is shown to be lost to link bandwidth",
        ),  # the rest is gains
        (Measured(1.02, 1.01, 1.03), "; 38 % of the step is shown to be lost to link bandwidth"),
    ],
)
def test_no_part_of_a_loss_that_is_smaller_or_not_known_so_well(sample, efficiency, said):
    good = sample.good()
    share = Measured(0.383, 0.36, 0.40)
    point = replace(
        good.points[-1], efficiency=efficiency, loss=replace(good.points[-1].loss, link_bandwidth=share)
    )
    verdict = replace(good.verdicts[0], share=share)
    assert said in answer(replace(good, points=(*good.points[:-1], point), verdicts=(verdict,)))


@pytest.mark.parametrize(
    ("grown", "says"),
    [
        (Measured(0.0, -0.01, 0.01), "but 20.0 % of every step waits for input"),
        (None, "but 20.0 % of every step waits for input"),
        (Measured(0.12, -0.03, 0.27), "but 20.0 % of every step waits for input"),  # it may not have grown
        (Measured(0.18, 0.17, 0.19), "most of the loss, 18.0 % of the step, is input"),
        (Measured(0.15, 0.14, 0.16), "the largest part of the loss, 15.0 % of the step, is input"),
        (
            Measured(0.12, 0.11, 0.13),
            "12.0 % of the step is shown to be lost to input",
        ),  # another term is larger
    ],
)
def test_waiting_for_input_is_a_loss_only_beyond_what_a_rank_alone_waits(sample, grown, says):
    """Whatever the share that is waited, and where what the loss is made of is not known."""
    good, share = sample.good(), Measured(0.2, 0.19, 0.21)
    terms = {f.name: Measured(0.13 if f.name == "overlap" else 0.02) for f in fields(Loss)}
    loss = None if grown is None else Loss(**{**terms, "input": grown})
    point = replace(good.points[-1], efficiency=Measured(0.7, 0.68, 0.72), loss=loss)
    verdict = replace(good.verdicts[0], cause="input", share=share)
    assert f"; {says}." in answer(replace(good, points=(*good.points[:-1], point), verdicts=(verdict,)))


def test_from_traces_a_share_of_the_step_is_no_loss(sample):
    """Two world sizes give an efficiency but no waterfall: one rank may lose as much by itself."""
    good = sample.good()
    point = replace(good.points[-1], efficiency=Measured(0.98), loss=None)
    verdict = replace(good.verdicts[0], cause="host", share=Measured(0.4, 0.39, 0.41))
    said = answer(replace(good, points=(*good.points[:-1], point), verdicts=(verdict,)))
    assert "the run keeps 98.0 % of ideal; 40.0 % of every step is host." in said


def test_the_answer_takes_the_verdicts_order(sample):
    good = sample.good()
    second = replace(good.verdicts[0], cause="overlap", share=Measured(0.4, 0.1, 0.7))
    assert answer(replace(good, verdicts=(good.verdicts[0], second))) == answer(good)


def test_the_answer_says_what_is_missing_and_undecided(sample):
    assert answer(sample.bad()) == (
        "At 2 ranks the run keeps 50.1 % of ideal; what takes the rest is undecided. "
        "Of 3 trials 1 was measured in part and 1 is missing."
    )


def test_slower_than_one_rank_is_said_of_the_rates_that_stand_in_the_table(sample):
    """100 samples/s at one rank and 60 at two; a bare rank without DDP would do more."""
    good = sample.good()
    one, *_, two = good.points
    points = (
        replace(one, samples_per_s=about(100.0, 1.0)),
        replace(two, world_size=2, samples_per_s=about(60.0, 0.6), speedup=about(0.5, 0.01)),
    )
    assert one.world_size == 1
    said = answer(replace(good, points=points, verdicts=()))
    assert "2 ranks are slower than 1: 0.600 ±0.008 times its samples a second." in said


def test_a_rate_that_is_hardly_known_is_no_negative_part_of_one_ranks(sample):
    good = sample.good()
    one, *_, two = good.points
    points = (
        replace(one, samples_per_s=Measured(100.0, 40.0, 250.0, 4)),
        replace(two, world_size=2, samples_per_s=Measured(20.0, 8.0, 50.0, 4)),
    )
    assert "[0.05" in answer(replace(good, points=points, verdicts=()))


def test_the_answer_of_a_run_that_scales_well(sample):
    good = sample.good()
    verdict = replace(good.verdicts[0], cause="scales_well", share=None)
    assert answer(replace(good, verdicts=(verdict,))).endswith("of ideal: it scales well.")


def test_the_answer_of_one_rank_alone(sample):
    alone = replace(sample.good(), points=(sample.one_rank(),))
    assert answer(alone).startswith("A step at 1 rank takes 80.3 ms ±0.6; without a second world size")


def test_the_answer_without_any_result(sample):
    lost = (TrialStatus(world_size=2, status="oom", rank=0),)
    nothing = replace(sample.good(), points=(), verdicts=(), trials=lost, fabric=Fabric())
    assert answer(nothing) == "Nothing could be measured. The trial at 2 ranks is missing (out of memory)."


def test_waiting_for_the_slowest_is_a_part_of_the_steps_that_counted():
    seconds = {"productive_s": 44.0, "waiting_s": 38.0, "done_twice_s": 0.0, "start_up_s": 18.0}
    seconds |= dict.fromkeys(("between_launches_s", "pauses_s", "stalls_s", "other_s"), 0.0)
    goodput = Goodput(launches=1, steps=117, steps_done_twice=0, share=0.82, wall_s=100.0, **seconds)
    assert findings.goodput_line(goodput).endswith(
        "in 117 steps that counted (38.0% of all time waiting for the slowest rank); start-up (of 1) 18.0%"
    )


def test_unexplained_is_listed_even_when_unknown(sample):
    losses = dict(text.losses_of(sample.bad().points[1].loss))
    assert losses["unexplained"] is None
    assert "clocks" not in losses


@pytest.mark.parametrize(
    ("by_itself", "said"),
    [(True, "slow by itself too"), (False, "alone it is as fast"), (None, "is not known")],
)
def test_straggler(sample, by_itself, said):
    straggler = replace(sample.bad().points[1].straggler, by_itself=by_itself)
    line = findings.straggler_line(straggler)
    assert line.startswith("rank 1 is late in forward and costs 34 ms ±4 a step")
    assert said in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {},
            "850 ±4 a rank and step; the rank that has most in its step has 125.0 % ±0.4 of the mean; rank 2 has most "
            "over all steps, 90 ±20 more than the mean rank; lateness follows tokens, 20.0 us ±0.4 each: balancing "
            "them would save 12.0 ms ±1.0 of 60.0 ms ±0.5",
        ),
        ({"rank": None, "saves_ms": None}, "of the mean; a token takes 20.0 us ±0.4, no sure time"),
        ({"per_token_us": None, "saves_ms": None}, "cannot be told, since the numbers do not vary enough"),
        ({"most_over_mean": Measured(1.0)}, "850 ±4 a rank and step, the same on all ranks"),
    ],
)
def test_tokens(change, said):
    tokens = TokenBalance(
        per_step=about(850.0, 4.0),
        most_over_mean=about(1.25, 0.004),
        rank=2,
        rank_extra=about(90.0, 20.0),
        per_token_us=about(20.0, 0.4),
        saves_ms=about(12.0, 1.0),
    )
    assert findings.tokens_line(replace(tokens, **change), about(60.0, 0.5)).endswith(said)


@pytest.mark.parametrize(
    ("late", "said"),
    [
        ({}, "rollout takes 58.0 ms ±0.5 of a step, 12.0 ms ±0.3 of it waiting for communication"),
        ({"late_rank": 3, "late_ms": about(20.0, 0.4)}, "; rank 3 is late in it and costs 20.0 ms ±0.4"),
    ],
)
def test_a_named_phase(late, said):
    phase = NamedPhase(name="rollout", ms=about(58.0, 0.5), waits_ms=about(12.0, 0.3), **late)
    assert findings.phase_line(phase).endswith(said)


def test_a_percentage_has_two_decimals_at_most():
    tiny = Measured(-0.000003, -0.00001, 0.000004, 9)
    assert text.percent(tiny) == "0.00 % ±0.01"
    assert text.quantity(Measured(0.00688, 0.0067, 0.00706, 9), "ms") == "0.00688 ms ±0.00018"


def test_a_host_all_of_whose_ranks_are_late(sample):
    straggler = replace(sample.bad().points[1].straggler, host=3)
    line = findings.straggler_line(straggler)
    assert line.startswith("all ranks of host 3 are late in forward, rank 1 most, and cost 34 ms ±4 a step")


def test_the_answer_over_several_ranks_does_not_speak_of_ideal(sample):
    points = tuple(replace(p, base_world_size=2) for p in sample.good().points)
    said = answer(replace(sample.good(), points=points, verdicts=()))
    assert said == "At 4 ranks the run keeps 57.4 % ±1.2 of the throughput a rank at 2 ranks."


def test_a_trial_of_which_something_was_measured_is_not_called_missing(sample):
    good = sample.good()
    lost = (TrialStatus(world_size=2, status="interrupted"),)
    said = "The trial at 2 ranks was measured in part (stopped)."
    assert answer(replace(good, trials=lost)).endswith(said)


def test_a_free_networks_speedup_is_unknown_too():
    said = findings.free_line(Measured(1.42, 0.08, 22.99, 3))
    assert said == "faster by an unknown factor if communication were free"


def test_uneven_rounds_are_said_in_the_answer_the_table_and_the_page(sample):
    good = sample.good()
    *rest, last = good.points
    wild = {"efficiency": Measured(0.33, 0.01, 9.53, 3), "samples_per_s": Measured(465.0, 4.5, 48000.0, 3)}
    odd = replace(good, points=(*rest, replace(last, **wild, loss=None)), verdicts=())
    said = f"At {last.world_size} ranks the efficiency is unknown: too few rounds, or too uneven ones."
    assert answer(odd) == said
    terminal = printed(print_analysis, odd, sample.plan(), width=200)
    for drawn in (terminal, markdown(odd, sample.plan()), unescape(page(odd, sample.plan()))):
        assert "unknown" in drawn
        assert "[1, 953]" not in drawn
        assert "465" not in drawn.replace(" ", "").partition("<script")[0]


def test_what_is_surely_above_zero_is_never_shown_as_zero():
    found = Measured(0.4, 0.09, 1.8, 8)
    assert text.quantity(found, "ms") == "0.40 ms [0.09, 1.80]"
    assert text.quantity(Measured(0.4, -3.6, 4.4, 8), "ms") == "0 ms ±4"
