"""Bandwidth and hidden share of collectives of which several move data at once."""

import json

import numpy as np
import pytest

from scaling.cli.main import main
from scaling.traces.profiler.jobs import Table
from scaling.traces.profiler.match import Instance, Matched
from scaling.traces.profiler.traffic import traffic

MS = 1_000_000
BYTES = 4_000_000


def reduce(begin_ms, end_ms, step=0, ranks=(0, 1)):
    count = len(ranks)
    begin, end = np.full(count, begin_ms * MS), np.full(count, end_ms * MS)
    return Instance(
        step=step,
        collective="all_reduce",
        group="all",
        bytes=BYTES,
        ranks=ranks,
        rows=(0,) * count,
        begin=begin,
        end=end,
        released=int(begin[0]),
        transfer=int((end - begin)[0]),
        wait=np.zeros(count, dtype=np.int64),
        late=0,
        spread=0,
    )


def found(*instances, exposed_ms, ranks=(0, 1)):
    """`exposed_ms`: the union of what is not hidden, of each rank's step of 100 ms."""
    count = len(ranks)
    columns = {"window": np.full((count, 1), 100.0), "moved": np.full((count, 1), exposed_ms)}
    return traffic(
        Matched(instances=instances, unmatched=(), released={}), Table(ranks=ranks, columns=columns)
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


@pytest.mark.parametrize("begin_ms", [0, 20])  # at the same time, or one group after the other
def test_groups_that_share_no_rank_share_no_link(begin_ms):
    """Two tensor-parallel halves, each reducing its own gradients."""
    halves = (reduce(0, 10), reduce(begin_ms, begin_ms + 10, ranks=(2, 3)))
    comm = found(*halves, exposed_ms=10, ranks=(0, 1, 2, 3))
    assert comm.busbw_gbit_s.value == pytest.approx(BYTES * 8 / (10 * MS))
    assert comm.hidden_share.value == pytest.approx(0)
    assert comm.bytes_per_step == BYTES


@pytest.mark.parametrize(("host", "lines"), [("here", 1), (None, 0)])
def test_a_traced_collective_is_held_beside_what_others_reach_where_the_hosts_are_known(
    trace, tmp_path, capsys, host, lines
):
    for rank in range(2):
        card = [{"id": 0, "name": "NVIDIA GeForce RTX 4090"}]
        written = trace(rank, deviceProperties=card, host_name=host)
        for k in range(3):
            written.step(k, k * 2e6, 1.9e6).kernel("gemm", k * 2e6 + 10, 9e5, launched=k * 2e6 + 1)
            written.all_reduce(k * 2e6 + 9.1e5, 9e5, launched=k * 2e6 + 2, elements=2**28)
        written.write(tmp_path / f"rank-{rank}.json")
    assert main(["trace", str(tmp_path), "--json"]) == 0
    others = json.loads(capsys.readouterr().out)["fabric"]["others"]
    assert len(others) == lines
    for text in others:
        assert text.startswith(
            "others reach 2.24 GB/s in all_reduce on 2 x RTX 4090; yours: 1.193 at 1 GiB, 53%"
        )
