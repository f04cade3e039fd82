"""What a plain loop's stamps say of how long the links are busy."""

import pytest
from support.benchmark_parts import benchmark_part

MS = 1_000_000


@pytest.fixture(scope="module")
def plain():
    return benchmark_part("truth_parts.plain")


def test_a_bucket_begins_with_the_last_launch_or_the_end_of_the_one_before(plain):
    early = ([10 * MS, 20 * MS], [40 * MS, 70 * MS])
    late = ([15 * MS, 50 * MS], [41 * MS, 71 * MS])
    assert plain.busy_ms([[early], [late]]) == [26 + 21]
    queued = ([10 * MS, 20 * MS], [40 * MS, 70 * MS])
    assert plain.busy_ms([[queued], [queued]]) == [30 + 30]


def test_the_interval_is_that_of_the_means_of_neighbouring_steps(plain):
    each = [100.0 + block for block in range(5) for _ in range(plain.BATCH)]
    found = plain.interval(each)
    assert found.mean_ms == pytest.approx(102)
    assert found.half_ms == pytest.approx(2.776 * 2.5**0.5 / 5**0.5)


def test_runs_are_equal_where_the_interval_of_their_difference_holds_nothing(plain):
    a, b = plain.Busy(mean_ms=100, half_ms=3), plain.Busy(mean_ms=104, half_ms=3)
    assert a.same(b)
    assert a.apart(b) == pytest.approx(-4 / 104)
    assert not plain.Busy(mean_ms=99, half_ms=3).same(b)
