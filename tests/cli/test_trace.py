"""`scaling trace`: what a person sees, what is written, and how trouble is named while the rest is analysed."""

import json
import os
import shutil

import pytest
from support.commands import refused

from scaling.cli.main import main
from scaling.cli.pipeline import read_analysis
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan
from scaling.report.tracking.wandb import log_run
from scaling.traces.profiler import read


def value(number):
    return None if number is None else round(number["value"], 6)


def test_a_job_of_two_ranks(job, analysed):
    code, found = analysed(job())
    assert code == 0
    (point,) = found["points"]
    assert (point["world_size"], point["status"], value(point["step_ms"])) == (2, "done", 0.1)
    parts = {name: value(v) for name, v in point["parts_ms"].items() if v is not None}
    assert parts["forward"] == 0.045
    assert parts["exposed_transfer"] == 0.03
    assert parts["exposed_skew"] == 0.005
    assert sum(parts.values()) == pytest.approx(0.1)
    assert (point["straggler"]["rank"], value(point["straggler"]["cost_ms"])) == (1, 0.01)
    assert point["straggler"]["phase"] == "forward"
    (collective,) = found["trace"][0]["collectives"]
    assert (collective["bytes"], collective["group_size"], collective["late_rank"]) == (4000, 2, 1)
    assert value(collective["busbw_gbit_s"]) == pytest.approx(4000 * 8 / 30 / 1e3)
    assert [v["cause"] for v in found["verdicts"]] == ["link_latency", "host", "straggler"]


def test_the_folder_is_read_as_a_runs(job, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["trace", str(job()), "--out", str(out), "--batch", "32", "--name", "mine", "-v"]) == 0
    shown = capsys.readouterr().out
    assert "2 ranks from traces (device events)" in shown
    assert "rank 1 is late in forward" in shown
    folder = RunFolder(out)
    assert value_of(folder) == pytest.approx(2 * 32 / 0.1e-3)
    page = folder.report_html.read_text()
    assert "all_reduce" in page
    assert "Mean over ranks and steps, from traces." in page
    drawn = {e["name"] for e in json.loads(folder.timeline.read_text())["traceEvents"]}
    assert drawn >= {"compute", "exposed_skew"}
    assert not drawn & {"forward", "backward"}
    assert main(["report", str(out)]) == 0
    assert main(["compare", str(out), str(out)]) == 0
    assert "1.00" in capsys.readouterr().out
    refused(capsys, ["analyze", str(out)], "run `scaling trace` on them again")
    assert log_run(folder, read_plan(folder), read_analysis(folder), ()) is None
    assert list((out / "wandb").glob("offline-run-*"))


def value_of(folder):
    return read_analysis(folder).points[0].samples_per_s.value


@pytest.mark.parametrize("verb", ["predict", "verify"])
def test_what_overrides_change_is_not_in_a_folder_of_traces(verb, job, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["trace", str(job()), "--out", out]) == 0
    said = refused(capsys, [verb, out], f"{out}: the records of your own loop (a Probe) or of traces")
    assert said.endswith("name a run that `scaling run` made (it has a config.yaml)\n")


def test_without_a_batch_steps_are_compared(job, tmp_path, capsys):
    for name in ("a", "b"):
        assert main(["trace", str(job()), "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["comparable"], found["points"][0]["ratio"]["value"]) == (True, 1.0)


def test_several_processes_read_what_one_reads(job, analysed, monkeypatch):
    folder = job()
    (folder / "rank-9.json").write_text("no trace")
    alone = analysed(folder)
    monkeypatch.setattr(read, "SMALL_BYTES", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    together = analysed(folder)
    for _, document in (alone, together):
        del document["run"]["started"], document["run"]["id"]
    assert alone == together


def test_json_alone_writes_nothing(job, analysed, tmp_path, monkeypatch):
    folder = job()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    analysed(folder)
    assert list((tmp_path / "here").iterdir()) == []


def test_two_world_sizes_give_an_efficiency(job, trace, analysed, tmp_path):
    alone = trace(0, world_size=1)
    for k in range(5):
        alone.step(k, 1000 + 50 * k - 5, 49).kernel("gemm", 1000 + 50 * k, 48, launched=1000 + 50 * k - 4)
    alone.write(tmp_path / "alone" / "trace.json")
    code, found = analysed(job(), tmp_path / "alone")
    assert code == 0
    one, two = found["points"]
    assert value(two["efficiency"]) == pytest.approx(
        one["step_ms"]["value"] / two["step_ms"]["value"], rel=1e-5
    )
    assert one["efficiency"] is None
    assert "hold if a rank's batch is the same" in warnings(found)


def test_a_baseline_that_knows_of_no_ranks_is_one_rank_alone(job, trace, analysed, tmp_path):
    """torch writes who a rank is only where there is a process group."""
    alone = trace(0)
    del alone.document["distributedInfo"]
    for k in range(5):
        alone.step(k, 1000 + 50 * k - 5, 49).kernel("gemm", 1000 + 50 * k, 48, launched=1000 + 50 * k - 4)
    alone.write(tmp_path / "alone" / "rank0.json")
    code, found = analysed(job(), tmp_path / "alone")
    assert code == 0
    assert [p["world_size"] for p in found["points"]] == [1, 2]
    assert "used as a run of one rank" in warnings(found)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-3.json", 3),
        ("worker3.1690000000.pt.trace.json", 3),
        ("gpu-worker-3_1234.1690000000.pt.trace.json", None),
        ("worker3_1234.1690000000.pt.trace.json", None),
    ],
)
def test_a_host_called_worker_is_no_rank(trace, tmp_path, name, rank):
    made = trace().step(1, 0, 100).kernel("gemm", 10, 10, launched=1)
    del made.document["distributedInfo"]
    (alone,), _ = read.read_all([made.write(tmp_path / name)])
    assert alone.rank == rank


def test_exposed_communication_that_cannot_be_split_is_still_the_largest_part(trace, analysed, tmp_path):
    """DDP broadcasts a model's buffers before each forward; a broadcast does not wait for other ranks."""
    for rank in (0, 1):
        made = trace(rank)
        for k in range(5):
            at = 1000 + 100 * k
            made.step(k, at - 5, 99).kernel("gemm", at, 50, launched=at - 4)
            made.all_reduce(at + 50, 45, launched=at + 40)
            made.all_reduce(at + 95, 5, launched=at + 40, **{"Collective name": "broadcast"})
        made.write(tmp_path / "t" / f"rank-{rank}.json")
    found = analysed(tmp_path / "t")[1]
    assert found["points"][0]["parts_ms"]["exposed_transfer"] is None
    (verdict,) = found["verdicts"]
    assert (verdict["cause"], verdict["share"]["value"]) == ("communication", pytest.approx(0.5))


def test_nccl_without_events_of_a_device_says_so(trace, analysed, tmp_path):
    for rank in (0, 1):
        made = trace(rank).step(1, 0, 100).add("cpu_op", "aten::mm", 0, 50)
        made.add("user_annotation", "nccl:all_reduce", 60, 5).write(tmp_path / "t" / f"rank-{rank}.json")
    found = analysed(tmp_path / "t")[1]
    assert "it used a device, but its trace has no events of one" in warnings(found)
    assert found["points"][0]["comm"] is None


def warnings(found):
    return " | ".join(found["quality"]["warnings"])


def test_a_truncated_file_is_named_and_the_rest_is_analysed(job, analysed):
    folder = job()
    whole = (folder / "rank-1.json.gz").read_bytes()
    (folder / "rank-1.json.gz").write_bytes(whole[: len(whole) // 2])
    code, found = analysed(folder)
    assert code == 3
    assert "rank-1.json.gz: its gzip stream is cut off" in warnings(found)
    assert "INCOMPLETE: 1 of 2 ranks have no readable trace (rank 1)" in warnings(found)
    (point,) = found["points"]
    assert point["status"] == "incomplete"
    assert value(point["step_ms"]) == 0.1
    assert point["parts_ms"]["exposed_skew"] is None
    assert point["parts_ms"]["exposed_transfer"] is None
    assert point["comm"] is None
    assert value(found["trace"][0]["ranks"][0]["exposed_ms"]) == 0.04
    assert found["verdicts"][0]["cause"] == "undecided"


def test_a_missing_rank_is_incomplete_never_zero(job, analysed):
    code, found = analysed(job(ranks=(0,)))
    assert code == 3
    assert found["trace"][0]["missing_ranks"] == [1]
    assert found["points"][0]["parts_ms"]["exposed_skew"] is None
    assert "rank 1 does not show them" in warnings(found)


def test_of_two_files_of_a_rank_the_earlier_is_taken(job, analysed):
    folder = job()
    shutil.copy(folder / "rank-0.json.gz", folder / "rank-0-again.json.gz")
    code, found = analysed(folder)
    assert code == 0
    assert "rank-0.json.gz: rank 0 has an earlier trace" in warnings(found)
    assert value(found["points"][0]["step_ms"]) == 0.1


def test_a_rank_without_device_events_among_others(job, trace, analysed):
    folder = job()
    trace(1).step(0, 0, 100).add("cpu_op", "aten::mm", 10, 30).write(folder / "rank-1.json.gz")
    code, found = analysed(folder)
    assert code == 3
    assert "INCOMPLETE: rank 1: no events of a device" in warnings(found)


def test_absurd_and_unknown_events_are_said(job, trace, analysed, tmp_path):
    made = (
        trace(0, world_size=1)
        .step(1, 0, 100)
        .kernel("gemm", 10, 10, launched=1)
        .kernel("gemm", 30, -4, launched=2)
    )
    made.add("user_annotation", "nccl:all_reduce", 40, 5)
    made.kernel("shiny_new_thing", 50, 10, launched=42, stream=9).write(tmp_path / "one.json")
    code, found = analysed(tmp_path / "one.json")
    assert code == 0
    assert "negative or impossible times are left out: 1 on rank 0" in warnings(found)
    assert "shiny_new_thing: 1 times counted as communication" in warnings(found)


def test_traces_of_several_ranks_without_communication_say_so(trace, analysed, tmp_path):
    for rank in (0, 1):
        trace(rank).step(1, 0, 100).kernel("gemm", 10, 10, launched=1).write(tmp_path / "t" / f"{rank}.json")
    found = analysed(tmp_path / "t")[1]
    assert "INCOMPLETE: no communication was recognised" in warnings(found)


REFUSED = {
    "an empty folder": ("folder", None, 2, "no trace in this folder"),
    "nothing there": ("absent.json", None, 2, "no such file or folder"),
    "JSON that is no trace": ("a.json", "{}", 1, "there is no"),
    "metadata only": ("a.json", '{"traceEvents": [{"ph": "M", "name": "x"}]}', 1, "nothing to analyse"),
    "no JSON": ("a.json", "Traceback (most recent call last):", 1, "it is not JSON"),
}


@pytest.mark.parametrize(("name", "content", "status", "why"), REFUSED.values(), ids=REFUSED)
def test_what_holds_nothing_is_refused_in_one_line(tmp_path, capsys, monkeypatch, name, content, status, why):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "input" / name
    path.parent.mkdir()
    if content is not None:
        path.write_text(content)
    elif name == "folder":
        path.mkdir()
    refused(capsys, ["trace", str(path)], why, status=status)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["input"]


# Hostile files beside good ones


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        (
            {"distributedInfo": {"rank": 1, "world_size": 5 * 10**8}},
            "its world_size is 500000000; 1 to 16384 is expected",
        ),
        ({"distributedInfo": {"rank": 2**63, "world_size": 2}}, "its rank is 9223372036854775808"),
        ({"distributedInfo": {"rank": -1, "world_size": 2}}, "its rank is -1"),
    ],
)
def test_a_rank_that_cannot_be_is_named_and_the_others_are_kept(job, trace, analysed, meta, why):
    folder = job()
    bad = trace(**meta).step(0, 0, 90).kernel("gemm", 10, 20, 5).write(folder / "x.json")
    code, found = analysed(folder)
    assert code == 3
    assert any(f"{bad}: {why}" in warning for warning in found["quality"]["warnings"])
    assert value(found["points"][0]["step_ms"]) == 0.1


def test_a_pipe_beside_traces_is_named_and_not_waited_for(job, analysed):
    folder = job()
    os.mkfifo(folder / "pipe.json")
    code, found = analysed(folder, folder / "pipe.json")
    assert code == 3
    assert any(
        "it is a pipe; a regular file is expected" in warning for warning in found["quality"]["warnings"]
    )


def test_numbers_beyond_64_bits_in_events_are_no_ids(trace, tmp_path, analysed):
    made = trace(rank=0, world_size=1).step(0, 0, 90)
    for k, odd in enumerate((2**63, -(2**70), 1e300)):
        made.kernel("gemm", 10 + 20 * k, 10, 5 + 20 * k, stream=odd)
    code, found = analysed(made.write(tmp_path / "rank0.json"))
    assert code == 0
    assert value(found["points"][0]["step_ms"]) == 0.05  # from the first kernel's begin to the last one's end


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("nccl_trace_rank_0", b"\x80\x02cos\nsystem\nX\x01\x00\x00\x00."),
        ("nccl_trace_rank_0.json", b'{"version": "2.10", "pg_config": {}, "entries": []}'),
    ],
)
def test_a_dump_of_the_flight_recorder_is_named_with_torch_s_own_command(tmp_path, capsys, name, data):
    (tmp_path / name).write_bytes(data)
    refused(capsys, ["trace", str(tmp_path)], "torchfrtrace --prefix nccl_trace_rank_ ")
