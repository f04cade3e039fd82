"""Outputs of jobs with lines of NCCL and of torch's watchdog, in the forms that people paste."""

import json

import pytest
from support.commands import refused

from scaling.cli.main import main
from scaling.traces.job_log import read_job_logs


def line(host, text, pid=1):
    return f"{host}:{pid}:{pid + 1} [0] NCCL INFO {text}"


def channel(host, direction, via, a="0[0]", b="8[0]", count=2):
    return [line(host, f"Channel {k:02d}/0 : {a} -> {b} [{direction}] via {via}") for k in range(count)]


def stands(rank, enqueued, completed, group="default_pg"):
    return (
        f"[rank{rank}]:[E101 01:11:21.26 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0({group}) Rank {rank}]  failure "
        f"detected by watchdog at work sequence id: 7 PG status: last enqueued work: {enqueued}, last completed work: "
        f"{completed}"
    )


@pytest.fixture
def findings(tmp_path):
    """findings(lines) -> what a job's output says."""

    def read(lines):
        path = tmp_path / "job.out"
        path.write_text("\n".join(["starting", *lines, "done"]))
        return " | ".join(read_job_logs([path]).findings)

    return read


def test_the_watchdogs_of_a_hang(shared, capsys):
    assert main(["trace", str(shared("wild/18_watchdog.log"))]) == 0
    said = capsys.readouterr().out
    assert "7 ranks (0-1, 3-7) waited 600 s in ALLREDUCE 2070 of 112 elements" in said
    assert "rank 3 is behind in default_pg: it enqueued up to 2070" in said
    assert "rank 2 of 8 has no line of the watchdog" in said


def test_an_older_watchdog_and_a_rank_that_completed_less(findings):
    older = [
        f"[Rank {r}] Timeout at NCCL work: 5, last enqueued NCCL work: 9, last completed NCCL work: {4 - (r == 1)}."
        for r in range(3)
    ]
    said = findings(older)
    assert "rank 1 is behind" in said
    assert "no line" not in said


def test_other_collectives_on_one_rank_are_a_wrong_order(findings):
    def late(rank, kind):
        return (
            f"[rank{rank}]:[E1 ProcessGroupNCCL.cpp:6] [Rank {rank}] Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum=7, OpType={kind}, NumelIn=4, NumelOut=4, Timeout(ms)=1000) ran for 1001 milliseconds"
        )

    said = findings([late(0, "ALLREDUCE"), late(1, "ALLREDUCE"), late(2, "BROADCAST")])
    assert "rank 2 waited in BROADCAST 7 of 4 elements: the ranks did not call the same" in said


def test_one_host_without_gpudirect_shows_in_its_receive_lines_alone(findings):
    good = [*channel("a", "send", "NET/IB/0/GDRDMA"), *channel("a", "receive", "NET/IB/0/GDRDMA")]
    bad = [*channel("b", "send", "NET/IB/0/GDRDMA"), *channel("b", "receive", "NET/IB/0")]
    assert "b, and not a, receives over the network without GPUDirect RDMA" in findings([*good, *bad])
    assert findings(good) == ""


def test_senders_without_gpudirect_read_are_no_finding(findings):
    older = [line(h, "Ring 00 : 1[18100000] -> 0[435e00000] [receive] via NET/IB/0/GDRDMA") for h in "ab"]
    assert findings([*older, *channel("a", "send", "NET/IB/0"), *channel("b", "send", "NET/IB/0")]) == ""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (channel("a", "receive", "NET/Socket/0"), "a goes over TCP"),
        ([line("a", "Channel 00 : 3[3] -> 4[4] via SHM/direct/direct")], "a goes through host memory (SHM)"),
        (
            [
                line("a", "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"),
                *channel("a", "receive", "NET/IB/1/GDRDMA"),
            ],
            "a uses 1 of 2 network cards",
        ),
        ([line("a", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")], "without GPUDirect RDMA"),
        ([line("a", "NCCL_P2P_DISABLE set by environment to 1.")], "NCCL_P2P_DISABLE=1 is set"),
        (
            [
                m
                for h in "abcd"
                for m in channel(h, "send", "NET/IB/0/GDRDMA" if h != "c" else "NET/IBext/0/GDRDMA")
            ],
            "c differs from the other hosts",
        ),
    ],
)
def test_ways_that_are_slower_than_they_need_to_be(findings, lines, said):
    assert said in findings(lines)


def test_a_job_without_such_lines_and_options_of_traces_are_refused(tmp_path, capsys):
    path = tmp_path / "job.out"
    path.write_text(line("a", "NCCL version 2.27.5+cuda12.9") + "\n")
    assert main(["trace", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert "--name" in refused(capsys, ["trace", str(path), "--name", "x"])


@pytest.mark.parametrize(
    ("head", "whose"),
    [
        ('{"version": 1, "args": ["./all_reduce_perf", "-J"], "results": []}', "nccl-tests"),
        ('{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "rocprofv3"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV18\n", "scaling import topo"),
        ('<system version="1"></system>', "scaling import nccl-xml"),
        ("# OSU MPI-CUDA Allreduce Latency Test\n", "OSU"),
    ],
)
def test_another_tools_file_is_named_as_what_it_is(tmp_path, capsys, head, whose):
    path = tmp_path / "file.json"
    path.write_text(head)
    assert whose in refused(capsys, ["trace", str(path)])
