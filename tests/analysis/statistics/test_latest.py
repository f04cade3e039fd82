"""How late the latest of n ranks is, in standard deviations."""

import math

import numpy as np
import pytest

from scaling.analysis.statistics.rounds import latest


def test_few_are_as_late_as_calculated():
    assert latest(1) == 0
    assert latest(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert latest(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-6)


def test_many_are_as_late_as_drawn():
    drawn = np.random.default_rng(0).normal(size=(20_000, 64)).max(axis=1)
    assert latest(64) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / math.sqrt(len(drawn)))


def test_more_are_later():
    late = [latest(n) for n in (1, 2, 8, 64, 1024, 16384, 10**6)]
    assert late == sorted(late)
    assert late[-1] < 5
