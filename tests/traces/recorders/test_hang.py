"""Dumps of the flight recorder: the real ones, and hangs made by hand in which the truth is known."""

import json

import pytest
from support import dumps
from support.commands import refused

from scaling.cli.main import main

KINDS = (("broadcast", 10), ("all_reduce", 1000), ("all_reduce", 2000))


@pytest.fixture
def traced(capsys):
    """traced(*paths) -> (exit status, the document)."""

    def run(*paths):
        code = main(["trace", *map(str, paths), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def steps(many, left_out=(), **changes):
    """Entries of a loop of KINDS; `left_out`: places in the loop; `changes`: place -> fields."""
    made, seq = [], 0
    for place in range(many):
        if place in left_out:
            continue
        kind, elements = KINDS[place % len(KINDS)]
        seq += 1
        told = {"kind": kind, "elements": elements, "at_s": place / 1e3, **changes.get(f"at{place}", {})}
        made.append(dumps.entry(len(made), seq, **told))
    return made


def test_the_hang_of_the_shared_dumps(shared, traced):
    folder = shared("flight_recorder")
    code, found = traced(*sorted(folder.glob("missing_rank1_gloo_2rank_rank?.json")))
    (fault,) = found["faults"]
    assert (code, fault["what"], fault["ranks"], fault["seq"]) == (0, "missing", [1], 16)
    assert (fault["collective"], fault["group"]) == ("all_reduce of [4096] Float", "default_pg (0)")
    assert [s["waiting_in"] and s["waiting_in"]["seq"] for s in found["stands"]] == [16, None]


@pytest.mark.parametrize("kind", ["rank?.json", "rank?.from_pickle_with_frames.json"])
def test_a_healthy_job_has_no_fault(shared, traced, kind):
    code, found = traced(*sorted(shared("flight_recorder").glob(f"ddp_gloo_2rank_{kind}")))
    assert (code, found["faults"], found["warnings"]) == (0, [], [])


def test_the_documented_example_lacks_a_rank(shared, traced):
    code, found = traced(shared("flight_recorder/nccl_documented_example.json"))
    assert (code, found["missing_ranks"]) == (3, [1])
    assert any("INCOMPLETE: no dump of rank 1" in line for line in found["warnings"])


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("place", [7, 8, 10])
def test_a_rank_that_skips_and_goes_on(tmp_path, traced, ranks, place):
    """The others stand in the collective; the odd one has already issued the next under its number."""
    for rank in range(ranks):
        odd = rank == 1
        made = steps(place + 2, left_out=(place,)) if odd else steps(place + 1)
        dumps.write_dump(tmp_path, rank, made, ranks)
    (fault,) = traced(tmp_path)[1]["faults"]
    kind, elements = KINDS[place % 3]
    assert (fault["what"], fault["ranks"], fault["seq"]) == ("skipped", [1], place + 1)
    assert fault["collective"] == f"{kind} of [{elements}] Float"


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("size", {"elements": 1001}),
        ("dtype", {"input_dtypes": ["Half"]}),
        ("order", {"kind": "reduce_scatter"}),
    ],
)
def test_another_collective_under_the_same_number(tmp_path, traced, what, change):
    for rank in range(3):
        dumps.write_dump(tmp_path, rank, steps(8, **({"at7": change} if rank == 2 else {})), 3)
    (fault,) = traced(tmp_path)[1]["faults"]
    assert (fault["what"], fault["ranks"], fault["others"], fault["seq"]) == (what, [2], [0, 1], 8)


def test_several_ranks_are_behind_in_a_group_of_their_own(tmp_path, traced):
    groups = {"0": list(range(4)), "7": [1, 2, 3]}
    for rank in range(4):
        made = steps(5)
        for seq in range(1, 2 if rank == 3 else 4):
            made.append(dumps.entry(len(made), seq, group=("7", "shard"), at_s=1 + seq))
        dumps.write_dump(tmp_path, rank, made if rank else made[:5], 4, groups)
    (fault,) = traced(tmp_path)[1]["faults"]
    assert (fault["what"], fault["group"], fault["ranks"], fault["seq"]) == ("missing", "shard (7)", [3], 2)


def test_ragged_collectives_are_no_fault(tmp_path, traced):
    for rank in range(2):
        made = [dumps.entry(k, k + 1, "all_to_all", elements=100 * (rank + 1)) for k in range(4)]
        dumps.write_dump(tmp_path, rank, made)
    assert traced(tmp_path)[1]["faults"] == []


def test_sends_that_stay_scheduled_are_no_wait(tmp_path, traced):
    for rank in range(2):
        sent = dumps.entry(3, 3, "send 0->1", retired=False, state="scheduled", is_p2p=True)
        dumps.write_dump(tmp_path, rank, [*steps(3), *([] if rank else [sent])])
    found = traced(tmp_path)[1]
    assert (found["faults"], found["stands"][0]["waiting_in"]) == ([], None)


def test_a_ring_that_has_lost_its_beginning_on_one_rank(tmp_path, traced):
    dumps.write_dump(tmp_path, 0, steps(9))
    dumps.write_dump(tmp_path, 1, steps(9)[4:])
    code, found = traced(tmp_path)
    assert (code, found["faults"], found["stands"][1]["overwritten"]) == (0, [], 4)
    assert any("rank 1: the ring has overwritten" in line for line in found["warnings"])


def test_a_rank_that_came_late_once_on_a_host_with_another_clock(tmp_path, traced):
    """Its clock is 5 s ahead throughout; once it came 3 s late, and all others waited."""
    for rank in range(3):
        offset = 5.0 if rank == 1 else 0.0
        made = [
            dumps.entry(k, k + 1, at_s=k * 0.1 + offset + (3.0 if k > 6 or (k == 6 and rank == 1) else 0.0))
            for k in range(12)
        ]
        dumps.write_dump(tmp_path, rank, made, 3)
    (fault,) = traced(tmp_path)[1]["faults"]
    assert (fault["what"], fault["ranks"], fault["seq"]) == ("late", [1], 7)
    assert fault["seconds"] == pytest.approx(3.0, abs=0.01)


def test_durations_by_kind_where_timing_was_on(tmp_path, traced):
    """Rank 1 joins 200 us late each time, so its own duration is that much shorter."""
    for rank in range(2):
        made = [dumps.entry(k, k + 1, elements=1 << 18, duration_ms=0.5 if rank else 0.7) for k in range(6)]
        dumps.write_dump(tmp_path, rank, made)
    (row,) = traced(tmp_path)[1]["collectives"]
    assert (row["bytes"], row["count"], row["late_rank"], row["late_share"]) == (1 << 20, 6, 1, 1.0)
    assert row["transfer_us"]["value"] == pytest.approx(500)
    assert row["skew_us"]["value"] == pytest.approx(100)  # mean over both
    assert row["busbw_gbit_s"]["value"] == pytest.approx(2**20 * 8 / 500 / 1e3)


def test_the_lines_name_the_place(tmp_path, capsys):
    for rank in range(2):
        waiting = {
            "retired": False,
            "state": "scheduled",
            "frames": [{"name": "step", "filename": "/x/train.py", "line": 9}],
        }
        dumps.write_dump(tmp_path, rank, steps(4 - rank, at3=waiting))
    assert main(["trace", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert (
        "rank 1 has not issued it: #4 of default_pg (0), broadcast of [10] Float; rank 0 did; train.py:9 step"
        in said
    )
    assert (
        "0: is in #4 of default_pg, broadcast of [10] Float (train.py:9 step), which gives up after 600 s"
        in said
    )


def test_what_cannot_be_read_is_said_and_the_rest_is_used(tmp_path, traced):
    dumps.write_dump(tmp_path, 0, steps(4))
    dumps.write_dump(tmp_path, 1, [*steps(4)[:3], {**steps(4)[3], "record_id": "x"}])
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"\x80\x02c")
    code, found = traced(tmp_path)
    assert code == 3
    assert any("rank_1.json: 1 entries cannot be read" in line for line in found["warnings"])
    assert any("rank_2: cannot be used" in line for line in found["warnings"])


def test_only_what_fits_the_files_is_accepted(tmp_path, capsys):
    path = dumps.write_dump(tmp_path, 0, steps(4))
    refused(capsys, ["trace", str(path), "--hta"], "is for traces of the profiler; these are dumps")
    refused(capsys, ["trace", str(path), "--beside", "x"], "records of NCCL Inspector are expected")
    log = dumps.write_records(tmp_path / "a.jsonl", [dumps.record(0, 1, 10)])
    refused(capsys, ["trace", str(path), str(log)], "one kind in a call is expected")


def test_how_to_get_them(capsys):
    assert main(["trace", "--how"]) == 0
    said = capsys.readouterr().out
    for name in (
        "TORCH_FR_BUFFER_SIZE",
        "NCCL_INSPECTOR_ENABLE",
        "KINETO_USE_DAEMON",
        "NCCL_TOPO_DUMP_FILE",
        "all_reduce_perf",
    ):
        assert name in said


def test_a_ring_that_lost_a_group_is_not_said_to_have_issued_nothing(tmp_path, traced, capsys):
    """Rank 1's ring holds only its last collectives, of another group; what it issued before is not known."""
    groups = {"0": [0, 1], "1": [1]}
    dumps.write_dump(tmp_path, 0, [dumps.entry(0, 5)], groups=groups)
    other = [dumps.entry(100 + k, 40 + k, group=("1", "mesh_tp")) for k in range(3)]
    dumps.write_dump(tmp_path, 1, other, groups=groups)
    assert traced(tmp_path)[1]["faults"] == []
    assert main(["trace", str(tmp_path)]) == 0
    assert "# fault   not known: no collective is in the dumps of two ranks" in capsys.readouterr().out


def test_no_fault_is_said_of_ranks_that_left_a_dump_alone(tmp_path, capsys):
    for rank in (0, 1):
        dumps.write_dump(tmp_path, rank, steps(6), ranks=8)
    assert main(["trace", str(tmp_path)]) == 3
    assert "none among rank 0, 1, which issued the same collectives" in capsys.readouterr().out


def test_groups_of_one_description_are_timed_apart(tmp_path, traced):
    """Two tensor groups of a mesh, one of which takes ten times as long."""
    for rank in range(4):
        name, members = ("1", [0, 1]) if rank < 2 else ("2", [2, 3])
        made = [
            dumps.entry(k, k + 1, group=(name, "mesh_tp"), duration_ms=1.0 if rank < 2 else 10.0)
            for k in range(5)
        ]
        dumps.write_dump(tmp_path, rank, made, groups={"0": [0, 1, 2, 3], name: members})
    rows = traced(tmp_path)[1]["collectives"]
    assert sorted((r["transfer_us"]["value"], r["skew_us"]["value"], r["whole"]) for r in rows) == [
        (1000, 0, 5),
        (10000, 0, 5),
    ]
