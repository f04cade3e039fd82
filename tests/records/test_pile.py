"""Rows and objects that come piece by piece, in memory or in files."""

import numpy as np
import polars as pl
import pytest

from scaling.records import pile, spool
from scaling.records.pile import Pile, Scratch
from scaling.records.spool import Changed, Spool

SCHEMA = {"launch": pl.Int64, "rank": pl.Int64, "block": pl.Int64}


def rows(rank, blocks):
    return pl.DataFrame({"launch": 0, "rank": rank, "block": blocks}, schema=SCHEMA)


@pytest.fixture
def small(monkeypatch):
    """Whatever comes is a lot."""
    monkeypatch.setattr(pile, "MEMORY_ROWS", 5)
    monkeypatch.setattr(pile, "FILE_ROWS", 4)
    monkeypatch.setattr(spool, "MEMORY_BYTES", 1000)
    monkeypatch.setattr(spool, "SMALL_BYTES", 0)


def test_few_rows_stay_in_memory_as_they_came(tmp_path):
    found = Pile(SCHEMA, Scratch(tmp_path), ("block", "rank"))
    found.add(rows(1, [3, 2]))
    found.add(rows(0, [2]))
    assert found.finish().equals(pl.concat([rows(1, [3, 2]), rows(0, [2])]))
    assert not list(tmp_path.iterdir())


def test_no_rows_have_the_columns_all_the_same(tmp_path):
    assert Pile(SCHEMA, Scratch(tmp_path)).finish().schema == SCHEMA


def test_many_rows_go_to_files_each_in_its_order(tmp_path, small):
    scratch = Scratch(tmp_path)
    found = Pile(SCHEMA, scratch, ("block", "rank"))
    for rank in range(4):
        found.add(rows(rank, [2, 1, 0]))
    frame = found.finish()
    assert isinstance(frame, pl.LazyFrame)
    assert frame.collect().sort("rank", "block").equals(pl.concat([rows(k, [0, 1, 2]) for k in range(4)]))
    files = sorted(scratch.path.glob("*/*.parquet"))
    held = [pl.read_parquet(file) for file in files]
    assert [one.height for one in held] == [4, 2, 4, 2]
    assert all(one.equals(one.sort("block", "rank")) for one in held)


def test_two_piles_of_a_folder_have_their_own_files(tmp_path, small):
    scratch = Scratch(tmp_path)
    frames = []
    for rank in (0, 1):
        found = Pile(SCHEMA, scratch)
        found.add(rows(rank, range(10)))
        frames.append(found.finish())
    assert [set(frame.collect()["rank"]) for frame in frames] == [{0}, {1}]


def test_the_folder_is_gone_with_what_uses_it(tmp_path, small):
    scratch = Scratch(tmp_path)
    found = Pile(SCHEMA, scratch)
    found.add(rows(0, range(10)))
    assert list(tmp_path.iterdir())
    del found, scratch
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["memory", "file"])
def test_objects_are_gone_through_again_and_again(tmp_path, small, where):
    kept = Spool(Scratch(tmp_path) if where == "file" else None)
    arrays = [np.full(100, k) for k in range(5)]
    for one in arrays:
        kept.add(one)
    assert len(kept) == 5
    for _ in range(2):
        assert all(one is other or (one == other).all() for one, other in zip(kept, arrays, strict=True))
    assert [one[0] for one in Changed(kept, lambda one: one * 2)] == [0, 2, 4, 6, 8]
    in_memory = [one is other for one, other in zip(kept, arrays, strict=True)]
    assert all(in_memory) == (where == "memory")
