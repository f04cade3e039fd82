"""Unequal tokens beside slow ranks, in simulated clusters: which of the two is named, and what it costs."""

from dataclasses import replace

import pytest
from support.own_loops import own_loop

from scaling.cli.pipeline import rebuild
from scaling.records import tables
from scaling.records.paths import RunFolder

MS = 1e6
TOKEN_NS = 20_000.0
EQUAL = (800.0,) * 4


@pytest.fixture(scope="module")
def truth(cluster):
    """Four ranks whose steps have 800 tokens each, and take 16 ms for them."""
    return cluster.Truth(
        world_sizes=(4,),
        rounds=10,
        steps=6,
        forward_ns=4e6,
        backward_ns=8e6,
        beta_ns=0.5,
        tokens=EQUAL,
        token_ns=TOKEN_NS,
    )


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """loop(truth) -> the analysis of a loop of one's own, at its one world size."""

    def read(truth):
        return rebuild(RunFolder(own_loop(truth, tmp_path_factory.mktemp("loop") / "run"))).analysis

    return read


@pytest.fixture(scope="module")
def varying(loop, truth):
    """Numbers that vary by 40 % on every rank, of which rank 2 has more."""
    return replace(truth, tokens=(800.0, 800.0, 1100.0, 800.0), tokens_vary=0.4)


@pytest.fixture(scope="module")
def unequal(loop, varying):
    return loop(varying)


def causes(analysis):
    return [verdict.cause for verdict in analysis.verdicts]


def test_the_time_of_a_token_and_the_rank_that_has_most(unequal):
    (point,) = unequal.points
    assert point.tokens.per_token_us.value == pytest.approx(TOKEN_NS / 1e3, rel=0.03)
    assert point.tokens.per_token_us.holds(TOKEN_NS / 1e3)
    assert point.tokens.rank == 2
    assert point.tokens.rank_extra.value == pytest.approx(225, rel=0.15)  # three quarters of 300
    assert point.tokens.per_step.value == pytest.approx(875, rel=0.03)


def test_balancing_saves_what_the_same_tokens_take_when_they_are_even(loop, varying, unequal):
    even = loop(replace(varying, tokens_even=True))
    (point,), (without,) = unequal.points, even.points
    saved = point.step_ms.value - without.step_ms.value
    assert saved > 5  # of some 50 ms
    assert point.tokens.saves_ms.value == pytest.approx(saved, rel=0.1)
    assert point.tokens.saves_ms.low - 0.2 <= saved <= point.tokens.saves_ms.high + 0.2
    assert point.loss.imbalance.value * point.step_ms.value == pytest.approx(saved, rel=0.1)
    assert without.loss.imbalance is None


def test_it_is_named_with_a_remedy_of_its_own_and_no_straggler_beside_it(unequal):
    (found,) = [verdict for verdict in unequal.verdicts if verdict.cause == "imbalance"]
    assert "straggler" not in causes(unequal)
    assert unequal.points[0].straggler is None
    assert found.confidence == "high"
    assert "us a token; balancing them would save" in found.evidence[0]
    assert [remedy.code.split()[0] for remedy in found.try_] == ["bucket", "batch"]
    assert all(remedy.predicted_gain.surely_above(1) for remedy in found.try_)


@pytest.mark.parametrize("seed", range(4))
def test_equal_tokens_and_tokens_without_effect_are_no_cause(loop, truth, seed):
    for control in (replace(truth, seed=seed), replace(truth, seed=seed, token_ns=0.0, tokens_vary=0.4)):
        found = loop(control)
        assert not {"imbalance", "straggler"} & set(causes(found))
        (point,) = found.points
        assert point.tokens.per_step.value == pytest.approx(800, rel=0.05)
        assert point.tokens.saves_ms is None or not point.tokens.saves_ms.surely_above(0.5)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("phase", ["input", "backward"])
def test_a_slow_rank_beside_unequal_tokens_is_told_apart(loop, cluster, varying, rank, phase):
    """Rank 2 is the one that has most to do. Behind rank 0, which is slower than that, its tokens cost little."""
    slow = replace(varying, stragglers=(cluster.Straggler(rank=rank, extra_ns=12 * MS, phase=phase),))
    found, even = loop(slow), loop(replace(slow, tokens_even=True))
    (point,), (without,) = found.points, even.points
    assert (point.straggler.rank, point.straggler.phase) == (rank, phase)
    assert point.straggler.cost_ms.value == pytest.approx(12, rel=0.05)
    assert point.tokens.per_token_us.value == pytest.approx(TOKEN_NS / 1e3, rel=0.03)
    assert point.tokens.rank == 2
    saved = point.step_ms.value - without.step_ms.value
    assert abs(point.tokens.saves_ms.value - saved) < point.tokens.saves_ms.half_width + 0.2
    assert "straggler" in causes(found)
    assert ("imbalance" in causes(found)) == (rank == 2)


def test_a_rank_that_is_slow_with_equal_tokens_stays_a_straggler(loop, cluster, truth):
    late = (cluster.Straggler(rank=1, extra_ns=12 * MS),)
    with_tokens, without = (loop(replace(truth, stragglers=late, tokens=told)) for told in (EQUAL, ()))
    assert with_tokens.points[0].straggler.rank == without.points[0].straggler.rank == 1
    assert with_tokens.points[0].straggler.cost_ms.value == pytest.approx(12, rel=0.05)
    assert "straggler" in causes(with_tokens)
    assert "imbalance" not in causes(with_tokens)
    (found,) = [v for v in with_tokens.verdicts if v.cause == "straggler"]
    assert found.confidence == "high"


def test_a_rank_that_always_has_as_many_more_is_undecided(loop, truth):
    found = loop(replace(truth, tokens=(800.0, 1400.0, 800.0, 800.0)))
    (point,) = found.points
    assert (point.straggler.rank, point.tokens.rank, point.tokens.per_token_us) == (1, 1, None)
    (verdict,) = [v for v in found.verdicts if v.cause == "straggler"]
    assert verdict.confidence == "low"
    assert "undecided whether it is slow or has more to do" in verdict.evidence[-1]
    assert "imbalance" not in causes(found)


def test_records_without_tokens_have_none_of_it(loop, truth):
    (point,) = loop(replace(truth, tokens=())).points
    assert (point.tokens, point.tokens_per_s, point.loss.imbalance) == (None, None, None)


def test_tokens_a_second_are_those_of_all_ranks(unequal):
    (point,) = unequal.points
    assert point.tokens_per_s.value == pytest.approx(4 * 875e3 / point.step_ms.value, rel=0.03)


def test_records_that_are_read_from_files_say_the_same(loop, varying, unequal, monkeypatch):
    monkeypatch.setattr(tables, "STEP_ROWS", 60)
    assert loop(varying).points[0].tokens == unequal.points[0].tokens


SQUARE_NS = 10.0


@pytest.mark.parametrize(("token_ns", "square_ns"), [(TOKEN_NS, SQUARE_NS), (0.0, 2 * SQUARE_NS)])
def test_the_time_of_a_token_and_of_a_squared_one(loop, varying, token_ns, square_ns):
    (point,) = loop(replace(varying, token_ns=token_ns, square_ns=square_ns, squares=True)).points
    assert point.tokens.per_token_us.value == pytest.approx(token_ns / 1e3, rel=0.05, abs=1)
    assert point.tokens.per_square_us.value == pytest.approx(square_ns / 1e3, rel=0.05)
    assert point.tokens.per_step.value == pytest.approx(875, rel=0.03)  # as told


def test_balancing_work_saves_what_squares_take_too(loop, varying):
    squared = replace(varying, square_ns=SQUARE_NS, squares=True)
    told, untold = (loop(replace(squared, squares=squares)).points[0] for squares in (True, False))
    assert untold.tokens.per_square_us is None
    assert told.tokens.saves_ms.value > untold.tokens.saves_ms.value
    assert told.loss.imbalance.half_width < untold.loss.imbalance.half_width
    assert told.straggler is None


@pytest.mark.parametrize("seed", range(6))
def test_straight_work_does_not_get_a_square(loop, varying, seed):
    (point,) = loop(replace(varying, squares=True, seed=seed)).points
    assert point.tokens.per_square_us is None
    assert point.tokens.per_token_us.value == pytest.approx(TOKEN_NS / 1e3, rel=0.05)
