"""Tables are the same however a run is read: in small stretches, by other processes, some files or all at once."""

import base64
import json
import math
import os
import shutil
import signal
import zlib
from pathlib import Path

import polars as pl
import pytest
from support import rank_files, simulated_cluster
from support.tables import checked, collected, unchecked

from scaling.cli import pipeline
from scaling.records import collect as reading
from scaling.records import tables
from scaling.records import tables as frames
from scaling.records.decode import PLAIN_WIDTH
from scaling.records.paths import RunFolder
from scaling.records.processes import Processes
from scaling.records.tables import SCHEMAS

TRUTH = simulated_cluster.Truth(
    world_sizes=(1, 2, 4),
    rounds=8,
    steps=4,
    buffers_ns=2e5,
    clock_offset_ns=(0, 5_000_000, 0, -80_000),
    stragglers=(simulated_cluster.Straggler(rank=1, extra_ns=5e6, phase="input"),),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that is read in one steps."""
    folder = RunFolder(tmp_path_factory.mktemp("collect") / "run")
    simulated_cluster.simulate(TRUTH, folder.path)
    pipeline.rebuild(folder)
    return folder


@pytest.fixture
def parts(monkeypatch):
    """Every run is read in many stretches, of a block each."""
    monkeypatch.setattr(frames, "STEP_ROWS", 40)
    monkeypatch.setattr(reading, "RANKS", 2)
    monkeypatch.setattr(reading, "STRETCH_BYTES", 1)


@pytest.fixture
def processes(monkeypatch):
    """Every run is so large that other processes read it, a few ranks and blocks at a time."""
    monkeypatch.setattr(reading, "RANKS", 2)
    monkeypatch.setattr(reading, "PROCESSES_BYTES", 0)
    monkeypatch.setattr(reading, "STRETCH_BYTES", 20_000)
    monkeypatch.setattr(reading, "cores", lambda: 2)
    monkeypatch.setattr(reading, "SHARE_BYTES", 1)


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


@pytest.mark.parametrize("how", ["parts", "processes", "all files at once"])
def test_analysis_and_tables_are_the_same(whole, how, request, monkeypatch, tmp_path):
    request.getfixturevalue("parts" if how == "parts" else "processes")
    if how == "all files at once":
        monkeypatch.setattr(reading, "SHARE_BYTES", 1 << 30)
    other = copy(whole, tmp_path / "run")
    pipeline.rebuild(other)
    assert near(json.loads(whole.analysis.read_text()), json.loads(other.analysis.read_text()))
    assert near(json.loads(whole.timeline.read_text()), json.loads(other.timeline.read_text()))
    for name in tables.PUBLISHED:
        rows = [tables.read_published(folder, name) for folder in (whole, other)]
        order = [k for k in ("launch", "rank", "block", "step", "seq", "index") if k in rows[0].columns]
        assert rows[0].sort(order).equals(rows[1].sort(order)), name
        files = list(other.table(name).iterdir())
        assert len(files) > 1
        assert {pl.read_parquet_metadata(file)["schema"] for file in files} == {tables.TABLE_SCHEMA}


@pytest.mark.parametrize("how", ["parts", "processes"])
def test_several_launches_are_analysed_as_at_once(whole, how, request, tmp_path):
    run = copy(whole, tmp_path / "run")
    rank_files.launch_again(run, 1)
    pipeline.rebuild(run)
    expected = json.loads(run.analysis.read_text())
    request.getfixturevalue(how)
    pipeline.rebuild(run)
    assert near(expected, json.loads(run.analysis.read_text()))


def test_parts_are_whole_blocks(whole, parts):
    found = unchecked(whole)
    assert len(found.parts) > 5
    rows = [pl.read_parquet(part.files["steps"]) for part in found.parts if "steps" in part.files]
    assert sum(frame.height for frame in rows) == found.steps.collect().height
    blocks = [set(frame["block"]) for frame in rows]
    assert sum(map(len, blocks)) == len(set.union(*blocks))


def test_lines_that_would_unpack_to_far_more_than_was_measured_are_left_out(whole, tmp_path):
    other, steps = copy(whole, tmp_path / "run"), 3_000_000
    packed = base64.b64encode(zlib.compress(bytes(steps * PLAIN_WIDTH * 8))).decode()

    def padded(lines):
        at, block = next((k, line) for k, line in enumerate(lines) if line["t"] == "block")
        lines.insert(
            at, {"t": "steps", "b": block["id"], "i": 100, "n": steps, "s": PLAIN_WIDTH, "z": packed}
        )

    rank_files.change(other.launch(0).rank(2), padded)
    expected, found = unchecked(whole), unchecked(other)
    assert found.steps.collect().height == expected.steps.collect().height
    assert found.dropped_samples == expected.dropped_samples + steps


@pytest.mark.parametrize("how", ["parts", "processes"])
def test_a_block_that_cannot_be_is_left_out(whole, how, request, tmp_path):
    request.getfixturevalue(how)
    other = copy(whole, tmp_path / "run")
    lost = []

    def without_steps(lines):
        block = next(line for line in lines if line["t"] == "block" and line["arm"] == "probe")
        lost.append(block["id"])
        return [line for line in lines if line["t"] != "step" or line["b"] != block["id"]]

    rank_files.change(other.launch(0).rank(2), without_steps)
    found, unchecked = checked(other), collected(other)
    assert lost[0] in set(unchecked.steps["block"])
    for name in ("blocks", "steps", "buckets", "fabric"):
        assert lost[0] not in set(getattr(found, name)["block"])
        kept = getattr(unchecked, name).filter(pl.col("block") != lost[0])
        assert getattr(found, name).equals(kept), name
    assert found.dropped_samples > 0


def test_the_rows_of_a_killed_process_are_read_all_the_same(whole, processes, monkeypatch):
    expected = collected(whole)
    submit = Processes._submit

    def killed(self, work, task):
        future = submit(self, work, task)
        for process in self._started():
            os.kill(process.pid, signal.SIGKILL)
        return future

    monkeypatch.setattr(Processes, "_submit", killed)
    assert collected(whole).steps.equals(expected.steps)


@pytest.fixture
def three_parts(tmp_path, monkeypatch):
    """Rows of three rounds, a part each, in files below a folder whose name looks like a column."""
    monkeypatch.setattr(frames, "STEP_ROWS", 1)
    folder = tmp_path / "batch=4"
    folder.mkdir()
    scratch, found = tables.scratch_folder(RunFolder(folder)), []
    for number in range(3):
        known = {"launch": 0, "round": number, "block": number, "batch": 32}
        row = dict.fromkeys(SCHEMAS["steps"]) | known
        rows = pl.DataFrame([row] * 2, schema=SCHEMAS["steps"])
        none = {name: pl.DataFrame(schema=SCHEMAS[name]) for name in tables.STEP_TABLES}
        files = tables.write_part({**none, "steps": rows}, Path(scratch.name), number)
        found.append(tables.Part(launch=0, first=number, last=number, files=files))
    return found, scratch


def test_a_few_rounds_open_the_files_of_their_own_parts_alone(three_parts):
    found, scratch = three_parts
    steps = tables.scan_parts(found, Path(scratch.name))["steps"]
    rounds = frames.few_rounds(steps, steps.select("launch", "round", frames.ITS_PART))
    first, others = next(rounds)
    assert first["round"].to_list() == [0, 0]
    assert others.columns == ["launch", "round"]
    for number in (0, 2):
        found[number].files["steps"].unlink()
    assert next(rounds)[0]["round"].to_list() == [1, 1]


def test_rows_of_files_have_the_columns_of_their_table(three_parts):
    found, scratch = three_parts
    rows = frames.in_memory(tables.scan_parts(found, Path(scratch.name))["steps"])
    assert rows.schema == SCHEMAS["steps"]
    assert rows["batch"].to_list() == [32] * 6
