"""Rank files as they are left by whatever ended the run: whole blocks, the rest said in words."""

import dataclasses
import gc
import json
import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support import rank_files
from support.simulated_cluster import Truth
from support.tables import collected, unchecked

from scaling.analysis.decompose.trials import RunRecords
from scaling.records.format import SCHEMA, STEP_FIELDS
from scaling.records.run import read_plan
from scaling.records.tables import STEP_TABLES, in_memory, publish_tables, read_published
from scaling.settings.plan import HARNESS, OWN_LOOP
from scaling.settings.schedule import round_blocks

FRAMES = ("blocks", "steps", "buckets", "fabric", "parameters")


TRUTH = Truth(world_sizes=(1, 2), rounds=2, steps=3)
"""A run of two ranks, to be damaged."""


def lines(folder, rank=1):
    return folder.launch(0).rank(rank).read_bytes().splitlines(keepends=True)


def write(folder, content, rank=1):
    folder.launch(0).rank(rank).write_bytes(b"".join(content))


def places(folder, kind, rank=1):
    """Line numbers of one kind of record."""
    return [i for i, line in enumerate(lines(folder, rank)) if json.loads(line)["t"] == kind]


def said(tables):
    return tuple(str(gap) for gap in tables.gaps)


def assert_whole(tables):
    """Every block has all its steps, every step its block."""
    steps = tables.steps.group_by("rank", "block").agg(found=pl.len())
    both = tables.blocks.join(steps, on=["rank", "block"], how="full", coalesce=True)
    assert both.filter(pl.col("found").ne_missing(pl.col("steps"))).is_empty()


def of_rank(frame, rank):
    return frame.filter(pl.col("rank") == rank)


# Whole


def test_a_whole_run_has_no_gaps(folder):
    tables = collected(folder)
    assert (tables.gaps, tables.dropped_samples) == ((), 0)
    assert [(r.rank, r.host, r.cut_off) for r in tables.ranks] == [(0, 0, False), (1, 1, False)]
    assert_whole(tables)


def test_blocks_of_a_rank_are_those_that_the_plan_gives_it(folder):
    plan, tables = read_plan(folder), collected(folder)
    for rank in (0, 1):
        planned = {b.id for r in (0, 1) for b in round_blocks(plan, plan.trials, 0, r) if b.runs_on(rank)}
        assert set(of_rank(tables.blocks, rank)["block"]) == planned


def test_steps_carry_their_blocks_names_and_their_stamps(folder):
    tables = collected(folder)
    first = next(line for line in rank_files.read(folder.launch(0).rank(1)) if line["t"] == "step")
    row = of_rank(tables.steps, 1).filter((pl.col("block") == first["b"]) & (pl.col("step") == first["i"]))
    stamps = dict(zip(STEP_FIELDS, [*first["s"], *[None] * 8], strict=False))
    assert row.select(STEP_FIELDS[2:6]).row(0, named=True) == {
        name: stamps[name] for name in STEP_FIELDS[2:6]
    }
    assert {"arm", "detailed", "round", "world_size", "batch"} <= set(tables.steps.columns)


def test_plain_steps_have_two_stamps_and_the_rest_unknown(folder):
    plain = collected(folder).steps.filter(pl.col("arm") == "plain")
    assert plain.select(STEP_FIELDS[:2]).null_count().row(0) == (0, 0)
    assert all(plain[name].is_null().all() for name in STEP_FIELDS[2:])


def test_messages_of_the_sweep_are_apart_from_buckets(folder):
    tables = collected(folder)
    assert set(tables.fabric["arm"]) == {"fabric"}
    assert set(tables.buckets["arm"]) == {"ddp_solo", "probe", "replay"}


def test_tables_come_back_from_parquet(folder):
    tables = collected(folder)
    for _ in range(2):  # again where there are tables already
        publish_tables(folder, unchecked(folder))
        for name in FRAMES:
            assert read_published(folder, name).equals(getattr(tables, name))
            assert pl.read_parquet(folder.table(name)).equals(getattr(tables, name))
        assert not list(folder.path.glob(".*"))


def test_a_table_of_an_older_version_was_one_file_and_is_replaced(folder):
    folder.table("steps").write_bytes(b"PAR1")
    publish_tables(folder, unchecked(folder))
    assert folder.table("steps").is_dir()


def test_a_disk_that_takes_no_more_is_said_as_the_system_says_it(folder, monkeypatch):
    def full(*_args, **_more):
        raise pl.exceptions.ComputeError("no space")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="Input/output error"):  # the disk that the folder is on has room
        collected(folder)
    assert not list(folder.path.glob(".*"))


def test_a_run_that_cannot_be_written_to_has_its_tables_elsewhere(folder, monkeypatch):
    expected = unchecked(folder)
    monkeypatch.setattr("os.access", lambda *_: False)
    tables = unchecked(folder)
    for name in STEP_TABLES:
        assert in_memory(getattr(tables, name)).equals(in_memory(getattr(expected, name))), name
    del expected
    assert not list(folder.path.glob(".*"))
    path = Path(tables.scratch.name)
    assert (path / "steps").is_dir()
    del tables
    assert not path.exists()


def test_files_are_gone_with_their_tables(folder):
    tables = unchecked(folder)
    assert list(folder.path.glob(".tables-*"))
    assert set(tables.parts[0].files) == set(STEP_TABLES)
    del tables
    assert not list(folder.path.glob(".tables-*"))


def test_what_a_killed_analysis_left_goes_after_a_day(folder):
    old, new = (folder.path / f".tables-{name}" for name in ("old", "new"))
    for left in (old, new):
        (left / "steps").mkdir(parents=True)
    os.utime(old, (0, 0))
    unchecked(folder)
    assert new.is_dir()
    assert not old.exists()


@pytest.mark.parametrize("source", [HARNESS, OWN_LOOP])
def test_files_are_gone_with_the_records_that_were_read_from_them(folder, source):
    """At once, and not when the collector comes by: nothing refers to itself."""
    plan = dataclasses.replace(read_plan(folder), source=source)
    run = RunRecords(unchecked(folder, plan), plan)
    assert run.usable.usable is run.usable
    gc.disable()
    try:
        del run
        assert not list(folder.path.glob(".tables-*"))
    finally:
        gc.enable()


# Cut off


def test_cut_off_in_mid_line_is_read_up_to_the_last_whole_block(folder):
    content, last = lines(folder), places(folder, "block")[-1]
    kept = places(folder, "block")[:-1]
    write(folder, [*content[: last - 1], content[last - 1][:17]])
    tables = collected(folder)
    assert of_rank(tables.blocks, 1).height == len(kept)
    assert_whole(tables)
    assert said(tables) == ("launch 0: rank 1 left records that are cut off; whole blocks are used",)
    assert [r.cut_off for r in tables.ranks] == [False, True]


def test_cut_off_in_the_block_line_loses_the_block(folder):
    content, last = lines(folder), places(folder, "block")[-1]
    write(folder, [*content[:last], content[last][:-2]])
    tables = collected(folder)
    whole = sum(json.loads(line)["t"] == "block" for line in content) - 1
    assert of_rank(tables.blocks, 1).height == whole
    assert_whole(tables)
    assert "cut off" in said(tables)[0]


def test_cut_off_between_steps_and_their_block_line_loses_the_block(folder):
    content, last = lines(folder), places(folder, "block")[-1]
    steps = json.loads(content[last])["steps"]
    write(folder, content[:last])
    tables = collected(folder)
    assert tables.dropped_samples == steps
    assert_whole(tables)
    assert "cut off" in said(tables)[0]


def test_a_block_that_one_rank_lacks_stays_with_the_others(folder):
    content, last = lines(folder), places(folder, "block")[-1]
    write(folder, content[:last])
    block = json.loads(content[last])["id"]
    assert set(collected(folder).blocks.filter(pl.col("block") == block)["rank"]) <= {0}


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.77, 0.999])
def test_wherever_a_file_is_cut_blocks_are_whole(folder, share):
    text = b"".join(lines(folder))
    write(folder, [text[: int(len(text) * share)]])
    tables = collected(folder)
    assert_whole(tables)
    assert len(tables.gaps) == 1
    assert "rank 1" in said(tables)[0]
    assert of_rank(tables.blocks, 0).height == len(places(folder, "block", rank=0))


# Missing, empty, damaged


def test_a_missing_rank_is_said(folder):
    folder.launch(0).rank(1).unlink()
    tables = collected(folder)
    assert said(tables) == ("launch 0: rank 1 left no records",)
    assert set(tables.blocks["rank"]) == {0}
    assert_whole(tables)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b'{"t":"he'], ids=["nothing", "an empty line", "half a head"]
)
def test_an_empty_file_is_said(folder, content):
    write(folder, [content])
    tables = collected(folder)
    assert len(tables.gaps) == 1
    assert "rank 1 left nothing that can be read: no head line" in said(tables)[0]
    assert set(tables.blocks["rank"]) == {0}


GARBAGE = {
    "text": b"Segmentation fault\n",
    "bytes": b"\x00\xff\xfe\x00\n",
    "another kind of line": b'{"t":"weather"}\n',
    "no object": b"[1,2,3]\n",
}


@pytest.mark.parametrize("line", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("last", [False, True], ids=["in the middle", "at the end"])
def test_a_garbage_line_is_said_and_costs_the_block_that_it_is_in(folder, line, last):
    content, blocks = lines(folder), places(folder, "block")
    content.insert(len(content) if last else blocks[3] + 1, line)
    write(folder, content)
    tables = collected(folder)
    assert of_rank(tables.blocks, 1).height == (len(blocks) if last else len(blocks) - 1)
    assert len(tables.gaps) == 1
    assert "rank 1" in said(tables)[0]
    assert_whole(tables)
    assert of_rank(tables.blocks, 0).height == len(places(folder, "block", rank=0))


@pytest.mark.parametrize(
    "more", [b"", b'{"t":"gpu_clock","mhz":1980}\n'], ids=["", "with a new kind of line"]
)
def test_a_newer_format_is_named(folder, more):
    head, *rest = lines(folder)
    newer = {**json.loads(head), "schema": SCHEMA + 1, "new_key": [1]}
    write(folder, [rank_files.sealed([newer]).encode(), more, *rest])
    tables = collected(folder)
    assert said(tables) == (
        "launch 0: rank 1 left nothing that can be read: "
        f"written in format {SCHEMA + 1}, this version reads format {SCHEMA}",
    )
    assert set(tables.blocks["rank"]) == {0}


def test_keys_that_are_not_known_do_no_harm(folder):
    rank_files.change(folder.launch(0).rank(1), lambda lines: lines[0].update(new_key=[1]))
    assert collected(folder).gaps == ()


def test_a_run_without_launches_is_empty(folder):
    shutil.rmtree(folder.path / "launches")
    tables = collected(folder)
    assert all(getattr(tables, name).is_empty() for name in FRAMES)
    assert tables.ranks == ()


def test_launches_are_told_apart(folder):
    rank_files.launch_again(folder, 1)
    folder.launch(1).rank(0).unlink()
    tables = collected(folder)
    assert said(tables) == ("launch 1: rank 0 left no records",)
    one = tables.blocks.filter(pl.col("launch") == 1)
    assert one.height == of_rank(tables.blocks.filter(pl.col("launch") == 0), 1).height
    key = ["launch", "rank", "block", "step"]
    assert tables.steps.select(key).is_unique().all()


# Clocks


def stamped(folder):
    return of_rank(collected(folder).steps, 1).sort("block", "step")


def with_clocks(folder, *clocks):
    """Rank 1's clock lines replaced: (offset, bound, time) each."""
    records = [
        {"t": "clock", "at": "begin", "offset_ns": o, "bound_ns": b, "time_ns": t} for o, b, t in clocks
    ]

    def replaced(lines):
        rest = [line for line in lines if line["t"] != "clock"]
        return [rest[0], *records, *rest[1:]]

    rank_files.change(folder.launch(0).rank(1), replaced)


def test_an_offset_is_subtracted_from_stamps_and_not_from_durations(folder):
    with_clocks(folder)
    raw = stamped(folder)
    with_clocks(folder, (5_000_000, 20_000, 0))
    shifted = stamped(folder)
    for name in ("begin_ns", "end_ns", "compute_end_ns", "sync_end_ns"):
        assert (raw[name] - shifted[name]).drop_nulls().unique().to_list() == [5_000_000]
    assert shifted.select(STEP_FIELDS[2:6]).equals(raw.select(STEP_FIELDS[2:6]))


def test_between_two_measurements_an_offset_is_interpolated(folder):
    with_clocks(folder)
    raw = stamped(folder)["begin_ns"]
    first, last = raw.min(), raw.max()
    with_clocks(folder, (1_000_000, 0, first), (3_000_000, 0, last))
    moved = (raw - stamped(folder)["begin_ns"]).to_list()
    expected = [1e6 + 2e6 * (at - first) / (last - first) for at in raw]
    assert moved == pytest.approx(expected, abs=1)


def test_every_measurement_counts_and_after_the_last_the_offset_goes_on(folder):
    with_clocks(folder)
    raw = stamped(folder)["begin_ns"]
    first, span = raw.min(), raw.max() - raw.min()
    at = [first + round(share * span) for share in (0, 0.25, 0.75)]
    known = [(k * 10**6, 0, t) for k, t in zip((1, 4, 2), at, strict=True)]
    with_clocks(folder, *known)
    moved = (raw - stamped(folder)["begin_ns"]).to_list()
    rate = (2 - 1) * 1e6 / (at[2] - at[0])  # none of it is a minute long: over all there is
    beyond = [max(0, t - at[2]) * rate for t in raw]
    expected = np.interp(raw.to_numpy(), at, [1e6, 4e6, 2e6]) + beyond
    assert moved == pytest.approx(expected.tolist(), abs=1)


def test_an_offset_within_its_bound_is_left_alone(folder):
    with_clocks(folder)
    raw = stamped(folder)
    with_clocks(folder, (19_000, 20_000, 0), (-20_000, 20_000, 10**15))
    assert stamped(folder).equals(raw)


@pytest.mark.parametrize(("more", "found"), [((), (0, 0, -1)), ((7,), (7, 0, -1)), ((7, 1, 3), (7, 1, 3))])
def test_what_a_collective_leaves_out_has_its_default(folder, more, found):
    step = {}

    def longer(lines):
        step.update(next(line for line in lines if line.get("c")))
        step["c"][-1] += more

    rank_files.change(folder.launch(0).rank(1), longer)
    tables = collected(folder)
    row = pl.concat([tables.buckets, tables.fabric]).filter(
        rank=1, block=step["b"], step=step["i"], seq=step["c"][-1][0]
    )
    assert row.select("enqueue_ns", "phase", "unit").rows() == [found]


def test_a_stamp_that_was_not_taken_stays_so(folder):
    step = {}

    def without(lines):
        step.update(next(line for line in lines if line.get("c")))
        step["c"][0][4] = 0

    rank_files.change(folder.launch(0).rank(1), without)
    with_clocks(folder, (5_000_000, 20_000, 0))
    tables = collected(folder)
    found = pl.concat([tables.buckets, tables.fabric]).filter(
        (pl.col("rank") == 1) & (pl.col("block") == step["b"]) & (pl.col("step") == step["i"])
    )
    assert found.sort("seq")["ready_ns"].to_list()[0] == 0


def test_the_largest_bound_is_kept(folder):
    with_clocks(folder, (0, 100, 0), (0, 300, 1))
    assert [r.clock_bound_ns for r in collected(folder).ranks][1] == 300
    with_clocks(folder)
    assert [r.clock_bound_ns for r in collected(folder).ranks][1] is None


def test_a_block_has_its_times_on_rank_0s_clock_and_on_its_hosts(folder):
    with_clocks(folder, (5_000_000, 20_000, 0))
    blocks = of_rank(collected(folder).blocks, 1)
    written = [json.loads(lines(folder)[i]) for i in places(folder, "block")]
    for name in ("begin_ns", "end_ns"):
        assert blocks[f"host_{name}"].to_list() == [block[name] for block in written]
        assert blocks[name].to_list() == [block[name] - 5_000_000 for block in written]


# Hostile


def test_a_pipe_or_a_device_in_place_of_records_is_named_and_the_others_are_read(folder):
    for path in (folder.launch(0).rank(1), folder.launch(0).rank(0)):
        path.unlink()
    os.mkfifo(folder.launch(0).rank(1))
    folder.launch(0).rank(0).symlink_to("/dev/zero")
    assert said(collected(folder)) == (
        "launch 0: rank 0 left nothing that can be read: it is a device; a regular file is expected",
        "launch 0: rank 1 left nothing that can be read: it is a pipe; a regular file is expected",
    )


@pytest.mark.parametrize("line", [b'{"t":"clock","at":' + b"[" * 100_000, b'{"t":"end","state":"\xff"}'])
def test_records_end_at_a_line_that_is_nested_without_end_or_not_utf8(folder, line):
    content = lines(folder)
    write(folder, [*content[:-3], line + b"\n", *content[-3:]])
    assert any("rank 1" in gap for gap in said(collected(folder)))
