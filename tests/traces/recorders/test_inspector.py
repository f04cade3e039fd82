"""NCCL Inspector's records: the documented ones, and those of a cluster whose skew is known."""

import json

import polars as pl
import pytest
from support import dumps
from support.tables import collected

from scaling.cli.main import main
from scaling.records.paths import RunFolder

SKEW = 0.02


def test_the_documented_records(shared, analysed):
    path = shared("nccl_inspector/documented_examples.jsonl")
    code, found = analysed(path)
    assert code == 3  # one rank of each communicator
    stated = [json.loads(line) for line in path.read_text().splitlines()]
    rows = {r["group"]: r for r in found["collectives"]}
    for one in stated:
        row, told = rows[one["header"]["id"]], one["coll_perf"]
        assert row["algbw_gbit_s"]["value"] / 8 == pytest.approx(told["coll_algobw_gbs"], rel=1e-6)
        assert row["busbw_gbit_s"]["value"] / 8 == pytest.approx(told["coll_busbw_gbs"], rel=1e-6)
    assert [c["ranks"] for c in found["communicators"]] == [8, 8, 32]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_slow_rank_is_named_and_its_cost_is_right(tmp_path, analysed, indent):
    """A transfer of 400 us; rank 2 joins 100 us after the others each time."""
    for rank in range(4):
        records = [dumps.record(rank, sn, 400 if rank == 2 else 500) for sn in range(1, 21)]
        dumps.write_records(tmp_path / f"host-pid{rank}.log", records, indent)
    code, found = analysed(tmp_path)
    (row,) = found["collectives"]
    assert (code, row["count"], row["whole"], row["late_rank"], row["late_share"]) == (0, 20, 20, 2, 1.0)
    assert (row["transfer_us"]["value"], row["skew_us"]["value"]) == (400, 75)
    assert row["busbw_gbit_s"]["value"] == pytest.approx(1.5 * 2**20 * 8 / 400 / 1e3)
    assert main(["trace", str(tmp_path)]) == 0


@pytest.mark.parametrize("extra_ms", [2, 20])
def test_the_skew_of_a_simulated_cluster(tmp_path, simulate, cluster, analysed, extra_ms):
    """Records made of a simulated run's buckets: rank 1 is late in backward by a known time."""
    late = cluster.Straggler(rank=1, extra_ns=extra_ms * 1e6)
    folder = RunFolder(tmp_path / "run")
    simulate(
        cluster.Truth(world_sizes=(4,), hosts=4, rounds=4, steps=5, channels=1, stragglers=(late,)),
        folder.path,
    )
    buckets = collected(folder).buckets.filter(pl.col("arm") == "probe").to_dicts()
    by_place = {}
    for b in buckets:
        by_place.setdefault(tuple(b[k] for k in ("launch", "round", "block", "step", "seq")), []).append(b)
    places = [p for p in sorted(by_place) if len(by_place[p]) == 4]
    records, waits, transfers = {r: [] for r in range(4)}, {}, {}
    for sn, place in enumerate(places):
        for b in by_place[place]:
            took = b["done_ns"] - b["launch_ns"]
            records[b["rank"]].append(dumps.record(b["rank"], sn, max(1, round(took / 1e3)), size=b["bytes"]))
        released = max(b["launch_ns"] for b in by_place[place])
        size = by_place[place][0]["bytes"]
        waits.setdefault(size, []).append(sum(released - b["launch_ns"] for b in by_place[place]) / 4)
        transfers.setdefault(size, []).append(max(b["done_ns"] for b in by_place[place]) - released)
    for rank, mine in records.items():
        dumps.write_records(tmp_path / "inspector" / f"{rank}.log", mine)
    code, found = analysed(tmp_path / "inspector")
    assert code == 0
    rows = {r["bytes"]: r for r in found["collectives"]}
    assert rows.keys() == waits.keys()
    whole = sum(r["skew_us"]["value"] * r["count"] for r in rows.values())
    assert whole == pytest.approx(sum(map(sum, waits.values())) / 1e3, rel=SKEW)
    for size, row in rows.items():
        mean = sum(transfers[size]) / len(transfers[size]) / 1e3
        assert row["transfer_us"]["value"] == pytest.approx(mean, rel=SKEW)
    first = max(rows.values(), key=lambda r: r["skew_us"]["value"])
    assert (first["late_rank"], first["late_share"]) == (1, pytest.approx(1.0, abs=0.1))


def test_beside_the_machines_own_curve(tmp_path, analysed):
    log = tmp_path / "all_reduce.log"
    rows = "\n".join(
        f"{m} {m // 4} float sum -1" + f" {t:.1f} {m / t / 1e3:.2f} {1.5 * m / t / 1e3:.2f} 0" * 2
        for m, t in ((1 << 18, 100.0), (1 << 20, 200.0), (1 << 22, 800.0))
    )
    log.write_text(f"# Collective test starting: all_reduce_perf\n{rows}\n")
    for rank in range(4):
        dumps.write_records(tmp_path / f"{rank}.jsonl", [dumps.record(rank, sn, 400) for sn in range(9)])
    files = sorted(tmp_path.glob("*.jsonl"))
    (row,) = analysed(*files, "--beside", log)[1]["collectives"]
    assert row["curve_share"] == pytest.approx(0.5, rel=0.01)


def test_the_machine_that_a_log_beside_names_is_held_beside_what_others_reach(tmp_path, analysed):
    log = tmp_path / "all_reduce.log"
    devices = "\n".join(
        f"#  Rank {r} Group  0 Pid {r} on a device {r} [0x0{r}] NVIDIA GeForce RTX 5090" for r in range(4)
    )
    row = f"{2**33} {2**31} float sum -1" + " 400000.0 21.47 32.21 0" * 2
    log.write_text(f"# Using devices\n{devices}\n{row}\n")
    for rank in range(4):
        records = [dumps.record(rank, sn, 644245, size=2**33) for sn in range(9)]
        dumps.write_records(tmp_path / f"{rank}.jsonl", records)
    files = sorted(tmp_path.glob("*.jsonl"))
    (text,) = analysed(*files, "--beside", log)[1]["links"]
    assert text.startswith(
        "others reach 35 GB/s in all_reduce on 4 x RTX 5090; yours: 20 at 8 GiB, 57% of it"
    )
    assert analysed(*files)[1]["links"] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"coll_algobw_gbs": 99.0}, "1 records state a bandwidth that is not their size over their time"),
        ({"coll_exec_time_us": 0}, "1 records have no duration of a microsecond or more"),
        ({"coll_msg_size_bytes": -1}, "1 records have a number or size that cannot be"),
        ({"coll_sn": "x"}, "1 records cannot be read"),
        ({"coll_sn": 3}, "1 records repeat the number of an earlier one"),
    ],
)
def test_damage_is_said(tmp_path, analysed, change, said):
    for rank in range(4):
        records = [dumps.record(rank, sn, 400) for sn in range(9)]
        if rank == 1:
            records[4]["coll_perf"] |= change
        dumps.write_records(tmp_path / f"{rank}.jsonl", records)
    assert any(said in line for line in analysed(tmp_path)[1]["warnings"])


def test_a_line_that_was_cut_off_is_left_out(tmp_path, analysed):
    for rank in range(2):
        path = dumps.write_records(
            tmp_path / f"{rank}.jsonl", [dumps.record(rank, sn, 400, ranks=2) for sn in range(9)]
        )
        if rank:
            path.write_text(path.read_text()[:-40])
    code, found = analysed(tmp_path)
    assert (code, found["collectives"][0]["whole"]) == (0, 8)
    assert any("1 records cannot be read" in line for line in found["warnings"])


def test_communicators_of_one_name_are_apart(tmp_path, analysed):
    """Two tensor groups have one name, as those of a device mesh do; one takes ten times as long."""
    for comm, time_us in (("0xa", 100), ("0xb", 1000)):
        for rank in range(2):
            records = [
                dumps.record(rank, sn, time_us, ranks=2, comm=comm, comm_name="mesh_tp") for sn in range(1, 6)
            ]
            dumps.write_records(tmp_path / f"{comm}-{rank}.log", records)
    code, found = analysed(tmp_path)
    rows = {r["group"]: (r["transfer_us"]["value"], r["count"], r["whole"]) for r in found["collectives"]}
    assert code == 0
    assert rows == {"mesh_tp (0xa)": (100, 5, 5), "mesh_tp (0xb)": (1000, 5, 5)}
    assert [r["late_rank"] for r in found["collectives"]] == [None, None]  # all took the same time


def test_times_with_a_fraction_read_as_those_without(shared, capsys):
    said = []
    for name in ("wild/10_inspector_float_time.jsonl", "wild/controls/10_inspector_int.jsonl"):
        assert main(["trace", str(shared(name))]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_a_log_of_one_host_is_no_curve_of_a_link_between_hosts(tmp_path, analysed):
    log = tmp_path / "all_reduce.log"
    devices = "\n".join(
        f"#  Rank {r} Group  0 Pid {r} on a device {r} [0x0{r}] NVIDIA H100" for r in range(4)
    )
    rows = "\n".join(f"{m} {m // 4} float sum -1" + " 100.0 10.49 15.73 0" * 2 for m in (2**18, 2**20, 2**22))
    log.write_text(f"# Using devices\n{devices}\n# Collective test starting: all_reduce_perf\n{rows}\n")
    for nodes, shown in ((1, True), (4, False)):
        for rank in range(4):
            records = [dumps.record(rank, sn, 400, nnodes=nodes) for sn in range(9)]
            dumps.write_records(tmp_path / str(nodes) / f"{rank}.jsonl", records)
        (row,) = analysed(*sorted((tmp_path / str(nodes)).glob("*.jsonl")), "--beside", log)[1]["collectives"]
        assert (row["curve_share"] is not None) is shown
