"""Files that are appended without decoding have the rows of all, as polars reads them."""

from __future__ import annotations

import polars as pl
import pytest

from scaling.records.row_groups import append_files
from scaling.records.thrift import read_struct, write_struct

SCHEMA = {"number": pl.Int64, "name": pl.String, "known": pl.Boolean, "maybe": pl.Int64}


def rows(first, count):
    numbers = range(first, first + count)
    return pl.DataFrame(
        {
            "number": numbers,
            "name": [f"arm {k % 3}" for k in numbers],
            "known": [k % 2 == 0 for k in numbers],
            "maybe": [None if k % 5 == 0 else -k for k in numbers],
        },
        schema=SCHEMA,
    )


def written(tmp_path, parts, **options):
    files = [tmp_path / f"{k}.parquet" for k in range(len(parts))]
    for part, file in zip(parts, files, strict=True):
        part.write_parquet(file, metadata={"schema": "1"}, **options)
    return files


@pytest.mark.parametrize("groups", [1, 40])
@pytest.mark.parametrize("compression", ["lz4", "uncompressed", "zstd"])
def test_all_rows_are_there_in_order(tmp_path, groups, compression):
    parts = [rows(0, 1000), rows(1000, 7), rows(5000, 3000)]
    files = written(tmp_path, parts, compression=compression, row_group_size=-(-3000 // groups))
    append_files(files, tmp_path / "all.parquet")
    whole = pl.concat(parts)
    assert pl.read_parquet(tmp_path / "all.parquet").equals(whole)
    assert pl.read_parquet_metadata(tmp_path / "all.parquet")["schema"] == "1"
    chosen = pl.col("number").is_between(5100, 5200)  # by the statistics of row groups
    found = pl.scan_parquet(tmp_path / "all.parquet").filter(chosen).select("maybe", "number").collect()
    assert found.equals(whole.filter(chosen).select("maybe", "number"))


def test_what_is_appended_can_be_appended(tmp_path):
    parts = [rows(0, 10), rows(10, 20), rows(30, 5)]
    files = written(tmp_path, parts)
    append_files(files[:2], tmp_path / "two.parquet")
    append_files([tmp_path / "two.parquet", files[2]], tmp_path / "all.parquet")
    assert pl.read_parquet(tmp_path / "all.parquet").equals(pl.concat(parts))


def test_one_file_is_copied(tmp_path):
    (file,) = written(tmp_path, [rows(0, 100)])
    append_files([file], tmp_path / "all.parquet")
    assert pl.read_parquet(tmp_path / "all.parquet").equals(rows(0, 100))


def test_other_columns_are_refused(tmp_path):
    files = written(tmp_path, [rows(0, 10), rows(10, 10).drop("maybe")])
    with pytest.raises(ValueError, match=r"1\.parquet: has other columns"):
        append_files(files, tmp_path / "all.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"no table at all"])
def test_what_is_no_parquet_file_is_refused(tmp_path, content):
    (tmp_path / "odd.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"odd\.parquet: not a Parquet file"):
        append_files([tmp_path / "odd.parquet"], tmp_path / "all.parquet")


def test_a_footer_comes_back_as_it_was(tmp_path):
    (file,) = written(tmp_path, [rows(0, 5000)], row_group_size=200)  # lists of more than 15 items
    content = file.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - size : -8]
    assert write_struct(read_struct(footer)) == footer


@pytest.mark.parametrize("number", [0, 1, -1, 63, -64, 64, 2**31, -(2**31), 2**63 - 1, -(2**63)])
def test_numbers_of_all_lengths(number):
    fields = {1: (6, number), 40: (1, True), 41: (2, False), 42: (7, b"12345678"), 43: (9, (1, [1, 2]))}
    assert read_struct(write_struct(fields)) == fields


def test_a_struct_that_is_cut_off_is_said():
    text = write_struct({1: (8, b"some bytes"), 2: (6, 5)})
    for end in range(len(text)):
        with pytest.raises(ValueError, match="cut off"):
            read_struct(text[:end])
