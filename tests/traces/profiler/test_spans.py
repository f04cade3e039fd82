"""Set algebra of time against counting instants one by one."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaling.traces.profiler.columns import EMPTY, common, merged, minus, running, union

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12)


def spans(pairs):
    begin = np.array([b for b, _ in pairs], dtype=np.int64)
    return merged(begin, begin + np.array([d for _, d in pairs], dtype=np.int64))


def instants(found):
    return {t for b, e in zip(found.begin, found.end, strict=True) for t in range(b, e)}


def covered(pairs):
    return {t for b, d in pairs for t in range(b, b + d)}


@given(intervals)
def test_a_union_holds_each_instant_once_and_in_disjoint_order(pairs):
    found = spans(pairs)
    assert instants(found) == covered(pairs)
    assert found.length == len(covered(pairs))
    assert (found.begin[1:] > found.end[:-1]).all()


@given(intervals, intervals)
def test_differences_and_intersections(a, b):
    assert instants(minus(spans(a), spans(b))) == covered(a) - covered(b)
    assert instants(common(spans(a), spans(b))) == covered(a) & covered(b)
    assert instants(union(spans(a), spans(b))) == covered(a) | covered(b)


@given(intervals, st.lists(st.integers(-5, 70), min_size=2, max_size=6))
def test_windows_share_the_length_out(pairs, borders):
    borders = np.sort(np.array(borders))
    each = [len(covered(pairs) & set(range(a, b))) for a, b in pairwise(borders)]
    assert spans(pairs).within(borders).tolist() == each


@given(intervals, st.lists(st.integers(-5, 70), max_size=6))
def test_a_set_holds_its_instants_and_no_other(pairs, asked):
    found = spans(pairs).holds(np.array(asked, dtype=np.int64))
    assert found.tolist() == [instant in covered(pairs) for instant in asked]


@given(st.lists(intervals, min_size=1, max_size=3))
def test_what_runs_at_once_is_told_by_bits(sets):
    found = running(*map(spans, sets))
    for low, high, code in zip(*found, strict=True):
        for instant in range(low, high):
            assert code == sum(1 << k for k, pairs in enumerate(sets) if instant in covered(pairs))


def test_of_nothing_there_is_nothing():
    assert minus(EMPTY, spans([(1, 2)])) is EMPTY
    assert common(spans([(1, 2)]), EMPTY) is EMPTY
    assert EMPTY.within(np.array([0, 10])).tolist() == [0]
