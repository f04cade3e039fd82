"""A large run's tables go to files, a few blocks at a time; what is found in them is what is found in memory."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal

import polars as pl
import pytest
from support import rank_files, simulated_cluster

from scaling.cli import pipeline
from scaling.records import collect as reading
from scaling.records import frames, pile, ranks, spill, spool, window
from scaling.records.check import checked, read_checked
from scaling.records.collect import collect
from scaling.records.columns import SCHEMAS
from scaling.records.paths import RunFolder
from scaling.records.processes import Processes
from scaling.records.run import read_plan

TRUTH = simulated_cluster.Truth(
    world_sizes=(1, 2, 4),
    rounds=8,
    steps=4,
    buffers_ns=2e5,
    clock_offset_ns=(0, 5_000_000, 0, -80_000),
    stragglers=(simulated_cluster.Straggler(rank=1, extra_ns=5e6, phase="input"),),
)
NAMES = ("blocks", *spill.TABLES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that fits into memory."""
    folder = RunFolder(tmp_path_factory.mktemp("spill") / "run")
    simulated_cluster.simulate(TRUTH, folder.path)
    pipeline.rebuild(folder)
    return folder


@pytest.fixture
def files(monkeypatch):
    """Every run is a large one."""
    monkeypatch.setattr(spill, "MEMORY_ROWS", 100)
    for name, rows in {"MEMORY_ROWS": 50, "FILE_ROWS": 40, "GROUP_ROWS": 8}.items():
        monkeypatch.setattr(pile, name, rows)
    monkeypatch.setattr(spool, "MEMORY_BYTES", 0)
    monkeypatch.setattr(spool, "SMALL_BYTES", 0)
    monkeypatch.setattr(frames, "STEP_ROWS", 40)
    monkeypatch.setattr(frames.few, "__defaults__", (60,))
    monkeypatch.setattr(window.windows, "__defaults__", (100,))
    monkeypatch.setattr(window, "PIECE_RANKS", 1)


@pytest.fixture
def processes(monkeypatch):
    """Every run is so large that other processes read it, a few ranks and blocks at a time."""
    monkeypatch.setattr(reading, "PROCESSES_BYTES", 0)
    monkeypatch.setattr(reading, "STRETCH_BYTES", 20_000)
    monkeypatch.setattr(reading, "cores", lambda: 2)
    monkeypatch.setattr(ranks, "SHARE", 1)


def copy(folder, to):
    shutil.copytree(folder.launches()[0].path, RunFolder(to).launch(0).path)
    for name in ("plan.json", "status.json"):
        shutil.copy(folder.path / name, to / name)
    return RunFolder(to)


def near(one, other):
    """Whether two JSON values are the same, their numbers to 1e-9."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return one == other


@pytest.mark.parametrize("how", ["files", "processes", "nothing kept"])
def test_analysis_and_tables_are_the_same(whole, how, request, monkeypatch, tmp_path):
    request.getfixturevalue("files" if how == "files" else "processes")
    if how == "nothing kept":
        monkeypatch.setattr(ranks, "KEPT_BYTES", 0)
    other = copy(whole, tmp_path / "run")
    pipeline.rebuild(other)
    assert near(json.loads(whole.analysis.read_text()), json.loads(other.analysis.read_text()))
    assert near(json.loads(whole.timeline.read_text()), json.loads(other.timeline.read_text()))
    for name in NAMES:
        rows = [pl.read_parquet(folder.table(name)) for folder in (whole, other)]
        order = [k for k in ("launch", "rank", "block", "step", "seq", "index") if k in rows[0].columns]
        assert rows[0].sort(order).equals(rows[1].sort(order)), name
        assert pl.read_parquet_metadata(other.table(name))["schema"] == pile.TABLE_SCHEMA


@pytest.mark.parametrize("how", ["files", "processes"])
def test_several_launches_are_analysed_as_in_memory(whole, how, request, tmp_path):
    run = copy(whole, tmp_path / "run")
    rank_files.launch_again(run, 1)
    pipeline.rebuild(run)
    expected = json.loads(run.analysis.read_text())
    request.getfixturevalue(how)
    pipeline.rebuild(run)
    assert near(expected, json.loads(run.analysis.read_text()))


def test_parts_are_whole_blocks(whole, files):
    found = collect(whole, read_plan(whole))
    assert isinstance(found.steps, pl.LazyFrame)
    assert len(found.parts) > 5
    parts = list(found.by_part())
    assert sum(part.steps.height for part in parts) == found.steps.collect().height
    blocks = [set(part.steps["block"]) for part in parts]
    assert sum(map(len, blocks)) == len(set.union(*blocks))


@pytest.mark.parametrize("how", ["files", "processes"])
def test_a_block_that_cannot_be_is_left_out(whole, how, request, tmp_path):
    request.getfixturevalue(how)
    other = copy(whole, tmp_path / "run")
    path = other.launch(0).rank(2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    at = next(k for k, line in enumerate(lines) if line["t"] == "block" and line["arm"] == "probe") - 1
    lost = lines[at]["b"]
    kept = [
        {key: value for key, value in line.items() if key != "crc"} for line in lines[:at] + lines[at + 1 :]
    ]
    path.write_text(rank_files.sealed(kept))
    plan = read_plan(other)
    found = read_checked(other, plan)
    unchecked = collect(other, plan)
    assert lost in set(unchecked.steps.collect()["block"])
    for name in ("steps", "buckets", "fabric"):
        assert lost not in set(frames.in_memory(getattr(found, name))["block"])
    assert checked(unchecked, plan).gaps == found.gaps
    assert found.dropped_samples > 0


def test_files_are_gone_with_their_tables(whole, files):
    found = collect(whole, read_plan(whole))
    assert list(whole.path.glob(".tables-*"))
    del found
    assert not list(whole.path.glob(".tables-*"))


def test_the_rows_of_a_killed_process_are_read_all_the_same(whole, processes, monkeypatch):
    expected = collect(whole, read_plan(whole))
    started = Processes._start

    def killed(self):
        started(self)
        os.kill(self.pids[-1], signal.SIGKILL)

    monkeypatch.setattr(Processes, "_start", killed)
    found = collect(whole, read_plan(whole))
    assert frames.in_memory(found.steps).equals(frames.in_memory(expected.steps))


def test_a_full_disk_is_said(whole, files, monkeypatch):
    def full(*_args, **_more):
        raise pl.exceptions.ComputeError("no space")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match=r"parquet"):
        collect(whole, read_plan(whole))


def test_a_few_places_at_a_time_are_all_rows_once():
    frame = pl.DataFrame({"launch": [0, 0, 0, 0, 1, 1], "rank": [1, 0, 1, 2, 0, 0], "row": range(6)})
    parts = [*frames.few(frame, ("launch", "rank"), 2)]
    assert [part["row"].to_list() for part in parts] == [[0, 1, 2], [3], [4, 5]]
    assert next(frames.few(frame, ("launch", "rank"), 6)) is frame
    in_files = [*frames.few(frame.lazy(), ("launch", "rank"), 2)]
    assert all(one.equals(other) for one, other in zip(parts, in_files, strict=True))


def test_a_window_has_no_more_rows_than_asked_for_or_a_single_rank(whole, monkeypatch):
    monkeypatch.setattr(window, "PIECE_RANKS", 1)
    plan = read_plan(whole)
    launch = whole.launch(0)
    with Processes(0) as none:
        stretch = ranks.read_ranks(launch, plan, ranks.Kept(), none).stretch
    for most in (1, 300, 10**6):
        wholes = [[*one] for one in window.wholes(window.windows(stretch, most))]
        for one in itertools.chain(*wholes):
            rows = sum(one.frames[name].height for name in ("steps", "buckets", "fabric"))
            assert rows <= most or len(one.frames["blocks"]) == 1
        borders = [(parts[0].first, parts[-1].last) for parts in wholes]
        assert all(last < first for (_, last), (first, _) in itertools.pairwise(borders))
    assert len(wholes) == 1
    monkeypatch.setattr(window, "LARGE_RANKS", 1)
    monkeypatch.setattr(window, "LARGE_ROWS", 300)
    (of_many_ranks,) = {sum(1 for _ in window.windows(stretch, most)) for most in (300, 10**6)}
    assert of_many_ranks > 1


@pytest.fixture
def three_parts(tmp_path, monkeypatch):
    """Rows of three rounds, a part each, in files below a folder whose name looks like a column."""
    monkeypatch.setattr(frames, "STEP_ROWS", 1)
    folder = tmp_path / "batch=4"
    folder.mkdir()
    growing = spill.Growing(pile.Scratch(folder))
    growing.to_files()
    for number in range(3):
        known = {"launch": 0, "round": number, "block": number, "batch": 32}
        row = dict.fromkeys(SCHEMAS["steps"]) | known
        rows = pl.DataFrame([row] * 2, schema=SCHEMAS["steps"])
        none = {name: pl.DataFrame(schema=SCHEMAS[name]) for name in spill.TABLES}
        growing.add({**none, "steps": rows})
    return growing


def test_a_few_rounds_open_the_files_of_their_own_parts_alone(three_parts):
    steps = three_parts.finish()["steps"]
    rounds = frames.few_rounds(steps, steps.select("launch", "round", frames.ITS_PART))
    first, others = next(rounds)
    assert first["round"].to_list() == [0, 0]
    assert others.columns == ["launch", "round"]
    for number in (0, 2):
        three_parts.files["steps"][number].unlink()
    assert next(rounds)[0]["round"].to_list() == [1, 1]


def test_rows_of_files_have_the_columns_of_their_table(three_parts):
    rows = frames.in_memory(three_parts.finish()["steps"])
    assert rows.schema == SCHEMAS["steps"]
    assert rows["batch"].to_list() == [32] * 6
