"""Blocks that cannot be are left out on all ranks and named; what is slow or late is not."""

import dataclasses
import json
import shutil

import pytest
from support import rank_files
from support.results import plan
from support.simulated_cluster import Truth
from support.tables import checked

from scaling.cli.pipeline import rebuild
from scaling.errors import InputError
from scaling.records.check import check_meshes
from scaling.records.paths import RunFolder
from scaling.settings.parallel import Parallel

MS = 1_000_000


TRUTH = Truth(world_sizes=(1, 2), rounds=3, steps=4)
"""A whole run of two ranks, whose records are then changed as if they had been measured so."""


def read(folder):
    return checked(folder)


def block_of(lines, arm, *, detailed=False, round_=1, world_size=2):
    return next(
        line
        for line in lines
        if line["t"] == "block"
        and (line["arm"], line["detailed"], line["round"], line["world_size"])
        == (arm, detailed, round_, world_size)
    )


def without_a_plain_block(lines):
    number = block_of(lines, "plain")["id"]
    return [
        line
        for line in lines
        if line.get("b") != number and not (line["t"] == "block" and line["id"] == number)
    ]


def changed(folder, arm, change, *, rank=1, detailed=False):
    """Change rank 1's block of an arm, (its steps, itself), before it is encoded. Returns the block's number."""
    number = []

    def inside(lines):
        block = block_of(lines, arm, detailed=detailed)
        steps = [line for line in lines if line["t"] == "step" and line["b"] == block["id"]]
        number.append(block["id"])
        change(steps, block)

    rank_files.change(folder.launch(0).rank(rank), inside)
    return number[0]


def test_whole_runs_lose_nothing(folder, simulate, cluster, tmp_path):
    assert (read(folder).gaps, read(folder).dropped_blocks) == ((), 0)
    slow = cluster.Straggler(rank=1, extra_ns=400 * MS)
    spread = RunFolder(tmp_path / "spread")
    simulate(
        cluster.Truth(
            world_sizes=(2, 4),
            hosts=4,
            placement="spread",
            rounds=3,
            steps=3,
            stragglers=(slow,),
            step_noise=0.3,
            skew_ns=5e6,
            clock_offset_ns=(0, 5_000_000_000, -7_000_000),
            clock_drift_ppm=(0, 20.0, -30.0),
        ),
        spread.path,
    )
    assert (read(spread).gaps, read(spread).dropped_blocks) == ((), 0)


CHANGES = {
    "a step ends before it begins": ("plain", lambda s, _b: s[2]["s"].__setitem__(1, s[2]["s"][0] - MS)),
    "a step begins before the one before it ends": (
        "plain",
        lambda s, _b: s[2]["s"].__setitem__(0, s[1]["s"][1] - MS),
    ),
    "its steps lie outside of it": ("plain", lambda _s, b: b.update(begin_ns=b["end_ns"] - MS)),
    "it ends before it begins": ("plain", lambda _s, b: b.update(end_ns=b["begin_ns"] - 1)),
    "not all of its steps are there": ("plain", lambda s, _b: s[1].update(i=2)),
    "a part of a step is negative": ("probe", lambda s, _b: s[0]["s"].__setitem__(2, -MS)),
    "the parts of a step are longer than the step": (
        "probe",
        lambda s, _b: s[0]["s"].__setitem__(3, 900 * MS),
    ),
    "backward waits for longer than it lasts": ("probe", lambda s, _b: s[0]["s"].__setitem__(4, MS)),
    "backward's compute ends before the step begins, or after its communication": (
        "probe",
        lambda s, _b: s[0]["s"].__setitem__(6, s[0]["s"][7] + MS),
    ),
    "a count in it is negative, or it has no step": ("plain", lambda _s, b: b.update(lead_in=-3)),
    "its facts are not those that the other ranks recorded of it": (
        "plain",
        lambda _s, b: b.update(batch=64),
    ),
}


@pytest.mark.parametrize("why", CHANGES)
def test_what_cannot_be_is_left_out_on_all_ranks_and_named(folder, why):
    arm, change = CHANGES[why]
    number = changed(folder, arm, change)
    tables = read(folder)
    assert set(tables.blocks["block"]) & {number} == set()
    assert set(tables.steps["block"]) & {number} == set()
    assert tables.dropped_blocks >= 1
    assert any(why in str(gap) and f"{number} ({arm})" in str(gap) for gap in tables.gaps)


@pytest.mark.parametrize(
    ("why", "at", "value"),
    [
        ("a collective was complete before it was launched", 6, lambda row: row[5] - MS),
        ("a collective lies outside of its step", 6, lambda row: row[6] + 900 * MS),
        ("a collective was complete before it was launched or enqueued", 7, lambda row: row[6] + MS),
        ("is of no known kind, phase or unit", 8, lambda _row: 4),
        ("is of no known kind, phase or unit", 9, lambda _row: -2),
        ("a collective has no bytes", 3, lambda _row: 0),
        ("a collective has no time", 5, lambda _row: 0),
    ],
)
def test_so_are_collectives_that_cannot_be(folder, why, at, value):
    def change(steps, _block):
        row = steps[1]["c"][0]
        row += [0, 0, -1][len(row) - 7 :]
        row[at] = value(row)

    number = changed(folder, "probe", change, detailed=True)
    tables = read(folder)
    assert number not in set(tables.buckets["block"])
    assert any(why in str(gap) for gap in tables.gaps)


def test_a_host_may_enqueue_a_collective_while_its_device_is_in_an_earlier_step(folder):
    def change(steps, _block):
        row = steps[1]["c"][0]
        row += [0, 0, -1][len(row) - 7 :]
        row[7] = steps[0]["s"][0] - MS

    number = changed(folder, "probe", change, detailed=True)
    assert number in set(read(folder).buckets["block"])


def later(steps, block):
    for step in steps:
        step["s"][:2] = [stamp + 500 * MS for stamp in step["s"][:2]]
    block.update(begin_ns=block["begin_ns"] + 500 * MS, end_ns=block["end_ns"] + 500 * MS)


def test_ranks_that_worked_together_did_so_at_the_same_time(folder):
    number = changed(folder, "plain", later)
    said = [str(gap) for gap in read(folder).gaps]
    assert any("never at the same time" in line and str(number) in line for line in said)


def test_a_block_that_one_rank_lacks_goes_and_is_counted(folder):
    number = []

    def drop(lines):
        number.append(block_of(lines, "plain")["id"])
        return [
            line
            for line in lines
            if not (line["t"] == "step" and line["b"] == number[0])
            and not (line["t"] == "block" and line["id"] == number[0])
        ]

    rank_files.change(folder.launch(0).rank(1), drop)
    tables = read(folder)
    assert number[0] not in set(tables.blocks["block"])
    assert tables.dropped_blocks == 1
    assert [str(gap) for gap in tables.gaps] == [
        f"launch 0: rank 1 lacks 1 block that other ranks have: {number[0]} (plain); left out on all ranks"
    ]
    assert rebuild(folder).exit_code == 3


def test_so_is_one_that_every_rank_lacks(folder):
    for rank in (0, 1):
        rank_files.change(folder.launch(0).rank(rank), without_a_plain_block)
    tables = read(folder)
    assert tables.dropped_blocks == 1
    assert all("lacks 1 block of the" in str(gap) for gap in tables.gaps)


def test_records_cut_at_a_blocks_border_are_not_called_done(folder):
    for rank in (0, 1):
        path = folder.launch(0).rank(rank)
        lines = path.read_text().splitlines(keepends=True)
        ends = [k for k, line in enumerate(lines) if json.loads(line)["t"] == "block"]
        path.write_text("".join(lines[: ends[len(ends) // 3] + 1]))
    rebuilt = rebuild(folder)
    assert rebuilt.exit_code == 3
    assert {t.status for t in rebuilt.analysis.trials} == {"lost"}
    assert any("end before the launch did" in line for line in rebuilt.analysis.quality.warnings)


def test_swapped_and_copied_rank_files_are_told(folder):
    zero, one = (folder.launch(0).rank(rank) for rank in (0, 1))
    shutil.copy(zero, one)
    said = [str(gap) for gap in read(folder).gaps]
    assert said == [
        "launch 0: rank 1 left nothing that can be read: rank 0 wrote it in launch 0, so it was copied or renamed"
    ]
    assert rebuild(folder).exit_code == 3


def test_a_copied_launch_is_left_out_and_named(folder):
    before = rebuild(folder).analysis
    shutil.copytree(folder.launch(0).path, folder.launch(1).path)
    after = rebuild(folder)
    assert after.analysis.points == before.points
    assert any("launch 1: is left out" in line for line in after.analysis.quality.warnings)
    folder.status.unlink()  # then its heads tell that it is launch 0
    assert rebuild(folder).analysis.points == before.points


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: [trial.update(batch=64) for trial in plan["trials"]],
        lambda plan: plan["spec"].update(batch_max=True),
        lambda plan: plan["spec"].update(mode="strong"),
        lambda plan: plan.update(trials=plan["trials"][:1]),
    ],
    ids=["batch", "cases", "scaling", "world size"],
)
def test_a_plan_that_changed_since_is_said(folder, change):
    written = json.loads(folder.plan.read_text())
    change(written)
    folder.plan.write_text(json.dumps(written))
    assert (
        "launch 0: plan.json has changed since it was measured; what follows from its settings may be wrong"
        in rebuild(folder).analysis.quality.warnings
    )


def test_a_last_round_that_the_time_ended_lacks_nothing(folder):
    """Rank 0 ends a round before its last block when the budget is over; the end line counts what was written."""

    blocks = [line["id"] for line in rank_files.read(folder.launch(0).rank(0)) if line["t"] == "block"]
    last = set(blocks[-3:])
    for rank in (0, 1):

        def without(lines):
            kept = [line for line in lines if line.get("b") not in last and line.get("id") not in last]
            kept[-1]["blocks"] = sum(line["t"] == "block" for line in kept)
            return kept

        rank_files.change(folder.launch(0).rank(rank), without)
    assert (read(folder).gaps, read(folder).dropped_blocks) == ((), 0)
    assert rebuild(folder).exit_code == 0


def test_records_without_their_end_line_are_not_whole(folder):
    for rank in (0, 1):
        rank_files.change(folder.launch(0).rank(rank), lambda lines: without_a_plain_block(lines)[:-1])
    assert [str(gap) for gap in read(folder).gaps] == [
        f"launch 0: rank {rank} left records that end before the launch did" for rank in (0, 1)
    ]


# Details in some rounds


@pytest.fixture
def sampled(simulate, cluster, tmp_path):
    """A whole run of two ranks and seven rounds, of which the first three and the sixth have details."""
    folder = RunFolder(tmp_path / "sampled")
    simulate(cluster.Truth(world_sizes=(1, 2), rounds=7, steps=4, detailed=(0, 1, 2, 5)), folder.path)
    return folder


def test_rounds_that_were_to_have_no_details_lack_none(sampled):
    assert (read(sampled).gaps, read(sampled).dropped_blocks) == ((), 0)
    assert rebuild(sampled).exit_code == 0


def test_a_plan_whose_degrees_fit_no_world_size_that_was_measured_is_refused_by_its_file():
    whole = plan()
    check_meshes(whole, "runs/one/plan.json")
    spoilt = dataclasses.replace(whole.spec, parallel=Parallel(name="ddp", replicate=0))
    with pytest.raises(InputError, match=r"runs/one/plan\.json: parallel=ddp: replicate 0 does not fit"):
        check_meshes(dataclasses.replace(whole, spec=spoilt), "runs/one/plan.json")
