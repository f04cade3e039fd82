"""What is written of a row.

Checksums in a rank file: a digit that changed after it was written is found, and nothing else is lost.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import pytest
from support.simulated_cluster import Truth
from support.tables import collected

from scaling.records.encoding import Sealer, stretches
from scaling.records.format import (
    SCHEMA,
    BlockRecord,
    CollectiveRow,
    HeadRecord,
    PlainRow,
    RecordedBlock,
    StepRow,
    shortened,
)
from scaling.worker.measure.recorder import Recorder

TRUTH = Truth(world_sizes=(1, 2), rounds=2, steps=3)
ROW = (3, 0, 2, 2**20, 10, 20, 30)


@pytest.mark.parametrize(
    ("more", "written"),
    [((), 7), ((0, 0, -1), 7), ((15,), 8), ((15, 0, -1), 8), ((15, 1), 9), ((0, 1), 9), ((0, 0, 0), 10)],
)
def test_a_collectives_row_leaves_out_defaults_at_its_end_alone(more, written):
    row = CollectiveRow(*ROW, *more)
    assert shortened(row) == row[:written]
    assert CollectiveRow(*shortened(row)) == row


STEP = (30, 40, 1, 2, 3, 1, 35, 36)
BUFFERS, WAITS = (0, 1, 51, 52), (3, 4)


@pytest.mark.parametrize(
    ("row", "written"),
    [
        (PlainRow(30, 40), 2),
        (StepRow(*STEP), 8),
        (StepRow(*STEP, *BUFFERS), 12),
        (StepRow(*STEP, *BUFFERS, *WAITS), 14),
        (StepRow(*STEP, tokens=0), 15),
        (StepRow(*STEP, *BUFFERS, *WAITS, 512), 15),
    ],
)
def test_a_steps_row_leaves_out_what_is_not_known_of_it(row, written):
    found = shortened(row)
    assert len(found) == written
    assert type(row)(*found) == row


LINES = [
    {"t": "head", "schema": 2},
    {"t": "step", "b": 1, "i": 0, "s": [1, 2]},
    {"t": "step", "b": 1, "i": 1, "s": [3, 4]},
    {"t": "block", "id": 1},
    {"t": "step", "b": 2, "i": 0, "s": [5, 6]},
    {"t": "block", "id": 2},
]


@dataclass(frozen=True)
class Checked:
    text: bytes
    damaged: tuple[bytes, ...]


def checked(text):
    """The text without the stretches whose seal does not hold, and those."""
    parts = [(text[one.begin : one.end], one.holds) for one in stretches(text)]
    return Checked(
        b"".join(lines for lines, holds in parts if holds is not False),
        tuple(lines for lines, holds in parts if holds is False),
    )


def text():
    sealer, lines = Sealer(), [json.dumps(line, separators=(",", ":")) + "\n" for line in LINES]
    return "".join(sealer.pass_on(x) if '"step"' in x else sealer.seal(x) for x in lines).encode()


def test_what_was_written_is_whole():
    assert checked(text()) == checked(text())
    assert (checked(text()).text, checked(text()).damaged) == (text(), ())


def test_a_changed_digit_loses_its_block_alone():
    found = checked(text().replace(b"[3,4]", b"[3,9]"))
    assert found.text == b"".join(
        line + b"\n" for line in text().splitlines() if b'"t":"head"' in line
    ) + b"".join(line + b"\n" for line in text().splitlines()[4:])
    assert [stretch.count(b"\n") for stretch in found.damaged] == [3]


def test_every_single_digit_is_covered():
    whole = text()
    for at, byte in enumerate(whole):
        if chr(byte).isdigit():
            changed = whole[:at] + (b"1" if byte != ord("1") else b"2") + whole[at + 1 :]
            assert checked(changed).damaged != ()


@pytest.mark.parametrize("change", ["dropped", "twice", "swapped"])
def test_steps_that_are_dropped_doubled_or_swapped_are_found(change):
    lines = text().splitlines(keepends=True)
    lines = {
        "dropped": [lines[0], *lines[2:]],
        "twice": [lines[0], lines[1], *lines[1:]],
        "swapped": [lines[0], lines[2], lines[1], *lines[3:]],
    }[change]
    assert len(checked(b"".join(lines)).damaged) == 1


def test_a_seal_that_cannot_be_read_takes_the_next_one_with_it():
    one = text().replace(b'{"t":"block","id":1,"crc":', b'{"t":"block","id":1,"cxc":')
    assert [stretch.count(b"block") for stretch in checked(one).damaged] == [2]


def test_what_was_cut_off_is_no_damage():
    cut = text()[: text().index(b'{"t":"block","id":2')]
    assert checked(cut).damaged == ()
    assert checked(cut).text == cut


def test_a_recorder_seals_what_it_writes(tmp_path):
    recorder = Recorder(tmp_path / "rank-0.jsonl", HeadRecord(schema=SCHEMA, rank=0, host=0))
    whose = {"round": 0, "world_size": 1, "arm": "plain", "detailed": False, "solo_rank": -1, "batch": 1}
    counts = {"accumulation": 1, "lead_in": 0, "steps": 1, "cpu_ns": 0, "thread_cpu_ns": 0, "delayed_ns": 0}
    block = BlockRecord(id=3, begin_ns=1, end_ns=9, **whose, **counts)
    recorder.block(RecordedBlock(block=block, steps=[PlainRow(2, 8)]))
    recorder.end()
    recorder.close()
    written = (tmp_path / "rank-0.jsonl").read_bytes()
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["t"] for line in lines if "crc" in line] == ["head", "block", "end"]
    assert (lines[-1]["blocks"], lines[-1]["steps"]) == (1, 1)
    assert checked(written).damaged == ()
    assert checked(written.replace(b'"z":"e', b'"z":"f')).damaged != ()


def test_a_sealer_starts_anew_after_each_seal():
    one, two = Sealer(), Sealer()
    one.pass_on('{"a":1}\n')
    assert one.seal('{"b":1}\n') != two.seal('{"b":1}\n')
    assert one.seal('{"c":1}\n') == two.seal('{"c":1}\n')


def test_a_run_names_the_block_that_changed(folder):
    path, rng = folder.launch(0).rank(1), random.Random(0)
    lines = path.read_text().splitlines(keepends=True)
    at = rng.choice([k for k, line in enumerate(lines) if '"t":"steps"' in line])
    block = json.loads(lines[at])["b"]
    lines[at] = lines[at].replace(f'"n":{json.loads(lines[at])["n"]}', '"n":4')
    path.write_text("".join(lines))
    tables = collected(folder)
    assert [str(gap) for gap in tables.gaps] == [
        "launch 0: rank 1 left records that changed after they were written (their checksums do not hold): "
        f"block {block}, left out"
    ]
    assert tables.dropped_samples >= 3
