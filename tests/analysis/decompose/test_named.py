"""What ranks do and wait in the phases that a loop names, from the tables of its blocks."""

import polars as pl
import pytest

from scaling.analysis.decompose.own_loop import read_named
from scaling.records.tables import EMPTY

STEPS = 2


def tables(rows, *, ranks=(0, 1), detailed=False):
    """One block of each rank, whose phases are `rows`: (rank, name, ns, of which waits), summed over its STEPS."""
    block = {"launch": 0, "block": 3, "round": 5, "arm": "probe", "detailed": detailed, "steps": STEPS}
    blocks = [block | {"rank": rank, "world_size": 2} for rank in ranks]
    phases = pl.DataFrame(rows, schema=["rank", "name", "ns", "wait_ns"], orient="row")
    place = {"launch": 0, "block": 3}
    return EMPTY.having(
        {
            "blocks": pl.LazyFrame(blocks),
            "phases": phases.with_columns(**{k: pl.lit(v) for k, v in place.items()}).lazy(),
        }
    )


def test_a_step_s_own_time_is_what_a_rank_does_not_wait():
    named = read_named(tables([(0, "rollout", 60, 20), (1, "rollout", 50, 0), (1, "reward", 8, 0)]), 2)
    assert list(named) == ["rollout", "reward"]
    assert named["rollout"].own_ns[0, 5].tolist() == [[20, 25]]
    assert named["rollout"].waited[0, 5].tolist() == [10, 0]
    assert named["reward"].own_ns[0, 5].tolist() == [[0, 4]]  # rank 0 had no part in it


@pytest.mark.parametrize(("ns", "wait_ns"), [(50, 60), (-1, 0), (50, -1)])
def test_what_cannot_be_is_left_out(ns, wait_ns):
    assert read_named(tables([(0, "rollout", ns, wait_ns)]), 2) == {}


def test_a_block_that_a_rank_lacks_and_one_with_details_say_nothing():
    assert read_named(tables([(0, "rollout", 60, 0)], ranks=(0,)), 2) == {}
    assert read_named(tables([(0, "rollout", 60, 0)], detailed=True), 2) == {}
