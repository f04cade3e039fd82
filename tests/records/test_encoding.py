"""Packed steps come back as they were; what cannot be read is left out."""

import dataclasses
import json

import numpy as np
import pytest
from support import rank_files, simulated_cluster
from support.tables import checked, collected

from scaling.records.encoding import pack_block
from scaling.records.format import (
    SCHEMA,
    BlockRecord,
    CollectiveRow,
    HeadRecord,
    PlainRow,
    RecordedBlock,
    StepRow,
)
from scaling.records.paths import RunFolder
from scaling.worker.measure.recorder import Recorder

FACTS = {"round": 0, "world_size": 1, "detailed": True, "solo_rank": -1, "batch": 1, "accumulation": 1}
COUNTS = {"lead_in": 0, "cpu_ns": 0, "thread_cpu_ns": 0, "delayed_ns": 0}
TRUTH = simulated_cluster.Truth(
    world_sizes=(1, 4), rounds=3, steps=4, buffers_ns=2e5, clock_offset_ns=(0, 5_000_000, 0, -80_000)
)


def rows(folder):
    read = collected(folder)
    order = ["launch", "rank", "block", "step", "seq", "index"]
    return {
        name: getattr(read, name).sort([k for k in order if k in getattr(read, name).columns])
        for name in ("blocks", "steps", "buckets", "fabric", "parameters")
    }


def test_packed_steps_take_less_than_a_third_of_their_numbers_as_json(original):
    path = original.launch(0).rank(3)
    packed = sum(len(line) for line in path.read_bytes().splitlines() if b'"t":"steps"' in line)
    steps = [line for line in rank_files.read(path) if line["t"] == "step"]
    assert packed < len(json.dumps(steps, separators=(",", ":"))) / 3


def written(path, steps, collectives=()):
    recorder = Recorder(path, HeadRecord(schema=SCHEMA, rank=0, host=0))
    block = BlockRecord(id=7, arm="probe", steps=len(steps), begin_ns=1, end_ns=99, **FACTS, **COUNTS)
    recorder.block(RecordedBlock(block=block, steps=steps, collectives=collectives))
    recorder.end()
    recorder.close()


def read(path):
    folder = RunFolder(path)
    plan = simulated_cluster.plan_of(simulated_cluster.Truth(world_sizes=(1,), hosts=1))
    return collected(folder, plan)


def test_a_recorders_steps_come_back_whatever_their_shapes(tmp_path):
    """Steps of a block may differ: a plain one, one with buffers, one with fewer collectives."""
    launch = RunFolder(tmp_path).launch(0)
    launch.path.mkdir(parents=True)
    steps = [
        PlainRow(10, 20),
        StepRow(30, 40, 1, 2, 3, 1, 35, 36),
        StepRow(50, 65, 1, 2, 3, 1, 55, 56, 4, 1, 51, 52),
        StepRow(70, 85, 1, 2, 3, 1, 75, 76, tokens=512),
        StepRow(90, 95, 1, 2, 3, 1, 93, 94, tokens=0),
    ]
    sent = [
        [],
        [CollectiveRow(0, 0, 1, 64, 31, 32, 33), CollectiveRow(1, 3, 1, 32, 32, 33, 34, 30, 1, 2)],
        [CollectiveRow(0, 0, 1, 64, 51, 52, 53, 51)],
        [],
        [],
    ]
    written(launch.rank(0), steps, sent)
    back = read(tmp_path)
    assert back.gaps == ()
    found = back.steps.sort("step")
    assert found["step"].to_list() == [0, 1, 2, 3, 4]
    assert found["tokens"].to_list() == [None, None, None, 512, 0]
    times = [name for name in StepRow._fields if name != "tokens"]
    assert found.select(times).rows()[1:] == [tuple(getattr(s, n) for n in times) for s in steps[1:]]
    assert found.select(StepRow._fields).row(0) == (10, 20, *[None] * (len(StepRow._fields) - 2))
    rows = back.buckets.sort("step", "seq")
    assert rows.select(CollectiveRow._fields).rows() == [tuple(row) for of in sent for row in of]


def test_numbers_of_any_size_come_back(tmp_path):
    rng = np.random.default_rng(1)
    steps = [PlainRow(*map(int, rng.integers(1, 2**61, 2))) for _ in range(50)]
    launch = RunFolder(tmp_path).launch(0)
    launch.path.mkdir(parents=True)
    written(launch.rank(0), steps)
    assert read(tmp_path).steps.sort("step").select("begin_ns", "end_ns").rows() == [tuple(s) for s in steps]


def test_equal_steps_are_one_record_and_defaults_are_left_out():
    row = CollectiveRow(0, 0, 1, 64, 31, 32, 33)
    (record,) = pack_block(3, [PlainRow(k, k + 1) for k in range(9)], [[row]] * 9)
    assert (record.i, record.n, record.s, record.c, record.w) == (0, 9, 2, 1, 7)


@pytest.mark.parametrize(
    "change",
    [
        {"n": 5},
        {"n": 2**40},
        {"n": 2**62},
        {"i": 2**63},
        {"c": 2**62, "w": 10},
        {"z": "AAAA"},
        {"z": ""},
        {"c": 7, "w": 10},
        {"b": 1},
    ],
    ids=str,
)
def test_steps_that_cannot_be_unpacked_lose_their_block(folder, change):
    path = folder.launch(0).rank(1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    line = next(line for line in lines if line["t"] == "steps")
    number = line["b"]
    line.update(change)
    for sealed in lines:
        sealed.pop("crc", None)
    rank_files.write(path, lines)
    found = checked(folder)
    assert number not in set(found.blocks["block"])
    assert any("not all of its steps are there" in str(gap) for gap in found.gaps)


def test_the_line_of_packed_steps_is_json(tmp_path):
    written(tmp_path / "rank-0.jsonl", [PlainRow(1, 2)])
    kinds = [json.loads(line)["t"] for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    assert kinds == ["head", "steps", "block", "end"]
    assert dataclasses.asdict(next(iter(pack_block(1, [PlainRow(1, 2)], ()))))["b"] == 1
