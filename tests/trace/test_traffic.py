"""Bandwidth and hidden share of collectives of which several move data at once."""

from __future__ import annotations

import numpy as np
import pytest

from scaling.trace.match import Instance, Matched
from scaling.trace.table import Table
from scaling.trace.traffic import traffic

MS = 1_000_000
BYTES = 4_000_000


def reduce(begin_ms, end_ms, step=0):
    begin, end = np.full(2, begin_ms * MS), np.full(2, end_ms * MS)
    return Instance(
        step=step,
        collective="all_reduce",
        group="all",
        bytes=BYTES,
        ranks=(0, 1),
        rows=(0, 0),
        begin=begin,
        end=end,
        released=int(begin[0]),
        transfer=int((end - begin)[0]),
        wait=np.zeros(2, dtype=np.int64),
        late=0,
        spread=0,
    )


def found(*instances, exposed_ms):
    """`exposed_ms`: the union of what is not hidden, of a step of 100 ms."""
    columns = {"window": np.full((2, 1), 100.0), "moved": np.full((2, 1), exposed_ms)}
    return traffic(
        Matched(instances=instances, unmatched=(), released={}), Table(ranks=(0, 1), columns=columns)
    )


@pytest.mark.parametrize(
    ("spans", "busy_ms"),
    [
        ([(0, 10)], 10),
        ([(0, 10), (10, 20)], 20),
        ([(0, 10), (0, 10)], 10),  # two at once share the link
        ([(0, 10), (0, 20), (0, 30)], 30),  # queued at once, done one after the other
    ],
)
def test_what_moves_at_once_counts_once(spans, busy_ms):
    comm = found(*(reduce(*span) for span in spans), exposed_ms=busy_ms)
    assert comm.busbw_gbit_s.value == pytest.approx(len(spans) * BYTES * 8 / (busy_ms * MS))
    assert comm.hidden_share.value == pytest.approx(0)


def test_half_of_it_exposed_is_half_hidden():
    assert found(reduce(0, 10), reduce(0, 10), exposed_ms=5).hidden_share.value == pytest.approx(0.5)
