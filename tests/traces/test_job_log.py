"""Outputs of jobs with lines of NCCL and of torch's watchdog, in the forms that people paste."""

import json

import pytest
from support.commands import refused
from traces.machines.test_logs_as_found import devices

from scaling.analysis.network.nccl_log import Cards, NcclLines
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
        return " | ".join(read_job_logs([path]).document["findings"])

    return read


def test_the_watchdogs_of_a_hang(shared, capsys):
    assert main(["trace", str(shared("wild/18_watchdog.log"))]) == 0
    said = capsys.readouterr().out
    assert "ranks 0-1 and 3-7 waited 600 s in ALLREDUCE 2070 of 112 elements" in said
    assert "rank 3 is behind in default_pg: it enqueued up to 2070" in said
    assert "rank 2 of 8: no line of the watchdog" in said


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
                line("a", "Using network IB", pid=2),
            ],
            "a uses 1 of 2 network cards",
        ),
        ([line("a", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")], "without GPUDirect RDMA"),
        ([line("a", "NCCL_P2P_DISABLE set by environment to 1.")], "NCCL_P2P_DISABLE=1 is set"),
        (
            [line("a", "Ring 00 : 2[3d000] -> 3[3e000] via direct shared memory")],
            "a goes through host memory (SHM)",
        ),
        (
            [line(h, "Bootstrap : Using eth0:172.17.0.2<0>") for h in "ab"],
            "a, b announce one address, 172.17.0.2 on eth0, so they do not reach each other",
        ),
        (
            [line(h, "Bootstrap : Using eth0:172.17.0.2<0>") for h in "abcde"],
            "a, b, c and 2 more hosts announce one address",
        ),
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


@pytest.mark.parametrize(
    "lines",
    [
        [
            line("a", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
            line("a", "Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer"),
        ],
        [
            line("a", "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_2:1/IB [RO]; OOB eth0:192.0.2.1<0>"),
            *channel("a", "receive", "NET/IB/1/GDRDMA"),
        ],
    ],
    ids=["cards that one host does not need", "one GPU and two cards"],
)
def test_what_looks_odd_and_is_as_it_should_be(findings, lines):
    assert findings(lines) == ""


def test_a_host_without_lines_of_nccl_did_not_get_the_environment(findings):
    first = line("host0", "NCCL_NET_GDR_LEVEL set by environment to SYS")
    table = (
        f"{devices(range(16), range(16))}\n# out-of-place in-place\n 4096 1024 float sum -1"
        + " 9.5 0.43 0.8 0" * 2
    )
    assert findings([first, table]).startswith(
        "no line of NCCL comes from host1, where ranks ran too: if all output"
    )
    assert findings([first, line("host1", "Using network IB"), table]) == ""


def warned(host, text, place="misc/ibvwrap.cc:278"):
    return f"{host}:7:8 [0] {place} NCCL WARN {text}"


@pytest.mark.parametrize(
    ("warning", "said"),
    [
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "`ulimit -l`"),
        ("Call to ibv_create_cq failed", "`ulimit -l`"),
        ("NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", "NCCL_IB_GID_INDEX"),
        ("NET/IB : Got completion from peer 192.0.2.1<5> with status=12 opcode=1 len=0", "NCCL_IB_GID_INDEX"),
        ("NET/IB : Got completion from peer 192.0.2.1<5> with error 4, opcode 0, len 0", "ACS is on"),
        ("Error while creating shared memory segment /dev/shm/nccl-a (size 5967872)", "--shm-size"),
        ("Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
        ("socketStartConnect: Connect to 192.0.2.1<5> failed : Connection refused", "not docker0"),
        ("NET/OFI Could not find any optimal provider", "EFA"),
        ("NET/OFI Unable to register memory (type = 2) for device 3. RC: -22", "libcuda.so"),
        ("ncclSocketInit: connecting to address  with family 1 is neither AF_INET(2)", "ncclGroupStart"),
    ],
)
def test_a_warning_that_is_known_has_its_remedy(findings, warning, said):
    assert said in findings([warned("a", warning)])
    assert findings([warned("a", warning), warned("b", warning)]) == findings([warned("a", warning)])


def test_warnings_as_nccl_2_32_writes_them(findings):
    place = "bootstrap.cc:129 (bootstrapNetInit)"
    assert "NCCL_SOCKET_IFNAME" in findings(
        ["[2026-11-26 23:07:14] " + warned("a", "Bootstrap : no socket interface found", place)]
    )


def test_a_warning_that_is_not_known_is_repeated_without_a_remedy(findings):
    assert findings([warned("a", "Cuda failure 801 'operation not supported'")]) == ""


def test_processes_that_each_ran_alone_are_named_and_one_process_is_not(findings):
    text = "ncclCommInitRankConfig comm 0x7f rank 0 nranks {} cudaDev 0 nvmlDev 0 busId 60 commId 0x24 - Init START"
    alone = [line(host, text.format(1), pid) for host, pid in (("a", 7), ("a", 8), ("b", 7))]
    assert findings(alone).startswith(
        "each of 3 processes ran alone, with one rank: start them with torchrun"
    )
    assert findings(alone[:1]) == ""
    assert findings([*alone, line("a", text.format(3), 7)]) == ""


def test_hosts_of_one_address_that_have_channels_have_met(findings):
    both = [
        m
        for h in "ab"
        for m in (line(h, "Bootstrap: Using eth0:192.0.2.1<0>"), *channel(h, "send", "P2P/CUMEM"))
    ]
    assert findings(both) == ""


def test_ranks_on_one_gpu_are_named_together(findings):
    pairs = ((2, 0), (4, 0), (0, 1))
    lines = [
        warned("a", f"Duplicate GPU detected : rank {r} and rank {p} both on CUDA device 1000", "init.cc:497")
        for r, p in pairs
    ]
    assert findings(lines).startswith(
        "ranks 0, 1, 2, 4 use one GPU (1000): give each process a GPU of its own"
    )


def test_lines_of_two_processes_in_one_are_both_read(findings):
    both = " ".join(
        channel("a", "receive", "NET/IB/0/GDRDMA", count=1) + channel("b", "receive", "NET/IB/0", count=1)
    )
    assert "b, and not a, receives over the network without GPUDirect RDMA" in findings([both])


def test_a_table_in_an_output_is_held_beside_what_others_reach(tmp_path, capsys):
    slow = [m for h in "ab" for m in channel(h, "receive", "NET/IB/0")]
    names = " ".join(f"[{k}]mlx5_{k}:1/IB" for k in range(8))
    slow += [line(h, f"NET/IB : Using {names} [RO]; OOB eth0:192.0.2.1<0>") for h in "ab"]
    table = devices(range(16), range(16)).replace("NVIDIA X", "NVIDIA H100 80GB HBM3")
    rows = "\n".join(
        f"{m} {m // 4} float sum -1" + f" {m / 1e5:.1f} 100.00 187.50 0" * 2 for m in (2**30, 2**31, 2**32)
    )
    path = tmp_path / "job.out"
    table += "\n# out-of-place in-place\n" + rows
    path.write_text("\n".join([*slow, table]))
    assert main(["trace", str(path)]) == 0
    out = capsys.readouterr().out
    assert (
        "# links    others reach 338.8 with 8x200G, 469.2 with 8x400G (GB/s in all_reduce on 16 x H100" in out
    )
    assert "and yours are 8 cards; yours: 187.5 at" in out
    rate = (
        "NET/IB: [{}] mlx5_{}:uverbs0:1/IB provider=Mlx5 speed=400000 context=0x1 pciPath=/sys/devices ar=1"
    )
    rates = [line(h, rate.format(k, k)) for h in "ab" for k in range(8)]
    path.write_text("\n".join([*slow, *rates, table]))
    assert main(["trace", str(path)]) == 0
    out = capsys.readouterr().out
    assert "on 2 hosts with NVLS, 32x100G or 8x400G a host; yours: 187.5 at 4 GiB, 41% of it" in out
    assert (
        "less than half, and NCCL's log says why: a, b receives over the network without GPUDirect RDMA"
        in out
    )


@pytest.mark.parametrize("value", ["NCCL_IB_DISABLE set by environment to 0.", "NCCL_NVLS_ENABLE set to 1"])
def test_a_setting_that_turns_nothing_off_is_no_finding(findings, value):
    assert findings([line("a", value)]) == ""


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


def late(rank, seq, guid, group):
    """A collective that timed out, and where its group stands."""
    return [
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600029 ms",
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:2271] [PG ID {guid} PG GUID {guid}({group}) Rank {rank // 2}]  failure "
        f"detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq + 2}, last completed "
        f"work: {seq - 1}",
    ]


def test_each_process_group_counts_its_own_collectives(findings):
    tensor = [*late(0, 7, 3, "mesh_tp"), *late(1, 7, 3, "mesh_tp")]
    said = findings([*tensor, *late(2, 42, 4, "mesh_tp"), *late(3, 42, 4, "mesh_tp")])
    assert "ranks 0-1 waited 600 s in ALLREDUCE 7 (mesh_tp) of 64 elements" in said
    assert "ranks 2-3 waited 600 s in ALLREDUCE 42 (mesh_tp (4)) of 64 elements" in said
    assert "same order" not in said
    assert "behind" not in said
    assert "did not call the same collectives" in findings([*tensor, *late(2, 9, 3, "mesh_tp")])


def test_a_watchdog_that_stood_still_and_a_time_out_that_others_tell_of(findings):
    stuck = "[rank1]:[F ProcessGroupNCCL.cpp:1555] [PG ID 0 PG GUID 0(default_pg) Rank 1] ProcessGroupNCCL's watchdog "
    told = (
        "[rank0]:[E ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump signal due to a "
        "collective timeout from  rank 2 and we will try our best to dump the debug info. Last enqueued NCCL work: 44, "
        "last completed NCCL work: 41.This is most likely caused by incorrect usages of collectives"
    )
    said = findings([stuck + "got stuck for 480 seconds without making progress", told])
    assert said.startswith("rank 1: the watchdog itself stood still for 480 s")
    assert "rank 2 had the time-out that others tell of; the output is missing here" in said
    assert "no line of the watchdog" not in said


def test_cards_of_efa_are_those_that_its_plugin_found():
    nccl = NcclLines()
    nccl.take(line("a", "NET/OFI Selected Provider is efa (found 32 nics)"))
    for card in range(8):
        nccl.take(channel("a", "send", f"NET/AWS Libfabric/{card}/GDRDMA", count=1)[0])
    assert nccl.network() == Cards(32, None)


def test_a_host_whose_name_was_torn_is_left_out(findings):
    whole = channel("node12", "send", "NET/IB/0/GDRDMA", count=25)
    torn = channel("nd2", "send", "SHM", count=1)
    assert findings([line("node12", "Bootstrap : Using eth0:192.0.2.1<0>"), *whole, *torn]) == ""
    assert "nd2 goes through host memory" in findings([*whole, *torn])


def test_a_completed_collective_that_was_never_enqueued_is_not_known(findings):
    assert findings([stands(0, 1, 5570036741), stands(1, 1, 948506245992)]) == ""
    assert "rank 1 is behind in default_pg: it enqueued up to 1 and completed 0" in findings(
        [stands(0, 1, 1), stands(1, 1, 0), stands(2, 1, 5570036741)]
    )


def test_gpudirect_of_a_plugin_has_its_own_remedy(findings):
    assert "NCCL_NET_GDR_LEVEL (PHB on Slingshot)" in findings(channel("a", "receive", "NET/AWS Libfabric/1"))


def test_cards_of_a_plugin_are_those_that_channels_name():
    nccl = NcclLines()
    for host in "ab":
        for card in range(4):
            nccl.take(channel(host, "send", f"NET/AWS Libfabric/{card}/GDRDMA", count=1)[0])
    assert nccl.network() == Cards(4, None)
    nccl.take(line("b", "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE; OOB eth0:192.0.2.1<0>"))
    assert nccl.network() == Cards(4, None)
    nccl.take(channel("c", "send", "NET/Socket/0", count=1)[0])
    assert nccl.network() is None
