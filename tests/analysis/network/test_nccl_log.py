"""What NCCL writes of itself where it begins: over NVLS, P2P, SHM and NET/IB, as its sources print it.

The way that NCCL took, in the analysis and beside what the topology promises.
"""

from dataclasses import replace

import pytest

from scaling.analysis.network.nccl_causes import warnings
from scaling.analysis.network.nccl_log import read, read_files, transport
from scaling.analysis.results import Fabric, NcclChoice, NcclGroup, NcclLog
from scaling.report.findings import nccl_lines
from scaling.settings.topology import Level, Nic

HEAD = "node0:41:41 [0] NCCL INFO cudaDriverVersion 12080\nnode0:41:41 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n"


def group(n, rank=0, comm="0x55d0c8a0"):
    return (
        f"node0:41:97 [{rank}] NCCL INFO ncclCommInitRankConfig comm {comm} rank {rank} nranks {n} cudaDev {rank} "
        f"nvmlDev {rank} busId 1000 commId 0x6ca2f1 - Init START\n"
    )


def channels(via, count=2, mark=""):
    return "".join(
        f"node0:41:97 [0] NCCL INFO Channel {k:02d}/0 : 0[0] -> 1[1] {mark}via {via}\n" for k in range(count)
    )


ALONE = group(1, comm="0x11")
NVLS = (
    "node0:41:97 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)\n"
    "node0:41:97 [0] NCCL INFO NVLS comm 0x55d0c8a0 headRank 0 nHeads 8 nvlsRanks 8 buffSize 1048576 "
    "nvlsPerRankSize 33554432 nvlsTotalSize 268435456\n"
    "node0:41:97 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels\n"
)


ON_AN_H200 = """\
vm:653:685 [0] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so
vm:653:685 [0] NCCL INFO cudaDriverVersion 13000
vm:653:685 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
vm:653:685 [0] NCCL INFO NET/IB : No device found.
vm:653:685 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>
vm:653:685 [0] NCCL INFO Using network Socket
vm:653:685 [0] NCCL INFO ncclCommInitRankConfig comm 0x7f1faa116370 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 60 \
commId 0x2433c8727c671745 - Init START
vm:653:685 [0] NCCL INFO Channel 00/64 : 0
vm:653:685 [0] NCCL INFO Channel 01/64 : 0
vm:653:685 [0] NCCL INFO Trees [0] -1/-1/-1->0->-1 [1] -1/-1/-1->0->-1
vm:653:703 [0] NCCL INFO [Proxy Service] Device 0 CPU core 2
vm:653:685 [0] NCCL INFO 64 coll channels, 64 collnet channels, 0 nvls channels, 64 p2p channels, \
64 p2p channels per peer
vm:653:685 [0] NCCL INFO ncclCommInitRankConfig comm 0x7f1faa116370 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 60 \
commId 0x2433c8727c671745 - Init COMPLETE
vm:653:653 [0] NCCL INFO comm 0x7f1faa116370 rank 0 nranks 1 cudaDev 0 busId 60 - Destroy COMPLETE
"""
"""What `scaling run` wrote with one rank there, with two of the 64 channels."""


def test_a_log_of_one_rank_on_a_gpu_has_a_version_and_no_transports():
    log = read([ON_AN_H200.splitlines()])
    assert (log.version, log.groups, log.warnings) == ("2.28.9", (), ())


def found(*logs):
    return read([log.splitlines() for log in (HEAD + logs[0], *logs[1:])])


def one(*logs):
    (only,) = found(*logs).groups
    return only


def test_peer_to_peer():
    log = found(group(2) + channels("P2P/CUMEM") + channels("P2P/CUMEM/read"))
    assert log.version == "2.27.5"
    (two,) = log.groups
    assert (two.world_size, two.transports, two.in_network) == (2, ("P2P/CUMEM",), ())
    assert log.choices == log.warnings == ()


def test_nvls_is_told_from_being_able_to():
    with_it, without = one(group(8) + channels("P2P/CUMEM") + NVLS), one(group(8) + channels("P2P/CUMEM"))
    assert (with_it.in_network, without.in_network) == (("NVLS",), ())
    only_able = one(group(8) + channels("P2P/IPC") + NVLS.splitlines(keepends=True)[0])
    assert only_able.in_network == ()


def test_through_host_memory():
    assert one(group(2) + channels("SHM/direct/direct")).transports == ("SHM",)


def test_between_hosts_over_infiniband_with_the_nearer_way_inside():
    log = group(16) + channels("P2P/CUMEM", 12)
    log += channels("NET/IB/3/GDRDMA", 3, "[send] ") + channels(
        "NET/IB/0(2)/GDRDMA(PCI)/Shared", 3, "[receive] "
    )
    assert one(log).transports == ("P2P/CUMEM", "NET/IB/GDRDMA")


def test_switches_of_the_network_that_add_up():
    coll = "node0:41:97 [0] NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA\n"
    found_ = one(group(16) + channels("NET/IB/0", 1, "[send] ") + coll)
    assert found_.in_network == ("SHARP",)
    assert set(found_.transports) == {"NET/IB", "COLLNET/SHARP/GDRDMA"}


def test_each_world_size_has_its_own_way_and_one_rank_alone_has_none():
    log = (
        group(2)
        + channels("P2P/CUMEM")
        + ALONE
        + channels("P2P/CUMEM")
        + group(4)
        + channels("SHM/direct/direct")
    )
    assert [(g.world_size, g.transports) for g in found(log).groups] == [(2, ("P2P/CUMEM",)), (4, ("SHM",))]


def test_one_rank_that_goes_another_way_is_seen_among_the_others():
    usual, odd = (
        group(8, rank) + channels(via) for rank, via in ((0, "P2P/CUMEM"), (5, "SHM/direct/direct"))
    )
    assert one(usual * 2, odd).transports == ("P2P/CUMEM", "SHM")


def test_what_it_chose_where_it_was_asked_to_say_so():
    lines = [
        f"node0:41:41 [0] NCCL INFO AllReduce: {size} Bytes -> Algo {choice} channel{{Lo..Hi}}={{0..23}}"
        for size, choice in (
            (67108864, "NVLS proto SIMPLE"),
            (4096, "RING proto LL"),
            (16384, "RING proto LL"),
        )
    ]
    choices = found(group(8) + "\n".join(lines)).choices
    assert [(c.algorithm, c.protocol, c.bytes_min, c.bytes_max) for c in choices] == [
        ("NVLS", "SIMPLE", 67108864, 67108864),
        ("RING", "LL", 4096, 16384),
    ]


def test_warnings_are_kept_once_each():
    warn = "node0:41:97 [0] transport/nvls.cc:230 NCCL WARN Cuda failure 801 'operation not supported'\n"
    assert found(group(2) + warn * 3).warnings == ("Cuda failure 801 'operation not supported'",)


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last):\nRuntimeError: via P2P/CUMEM\n", "\0\xff\n"]
)
def test_where_nccl_said_nothing_nothing_is_known(text, tmp_path):
    (tmp_path / "log-0.txt").write_text(text)
    assert read_files([tmp_path / "log-0.txt", tmp_path / "none.txt"]) is None


@pytest.mark.parametrize(
    ("via", "name"),
    [
        ("P2P/direct pointer/read", "P2P/direct"),
        ("P2P/indirect/3[3]", "P2P/indirect"),
        ("P2P/MNNVL", "P2P/MNNVL"),
        ("SHM/CE/direct", "SHM"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/AWS Libfabric/7/GDRDMA", "NET/AWS Libfabric/GDRDMA"),
        ("SOMETHING", "SOMETHING"),
    ],
)
def test_names_of_transports(via, name):
    assert transport(via) == name


@pytest.fixture
def spec(cluster):
    return cluster.spec_of(cluster.Truth(world_sizes=(1, 8), hosts=1, ranks_per_host=8, channels=1))


def fabric(*transports, in_network=(), **more):
    group = NcclGroup(world_size=8, transports=transports, in_network=in_network)
    return Fabric(nccl=NcclLog(version="2.27.5", groups=(group,), **more))


def promising(spec, **topology):
    return replace(spec, topology=replace(spec.topology, **topology))


NVLINK = (Level(name="inside", ranks=8, link_class="NV18"),)


def test_host_memory_where_nvlink_was_promised(spec):
    (said,) = warnings(fabric("P2P/CUMEM", "SHM"), promising(spec, levels=NVLINK))
    assert "at 8 ranks NCCL goes through host memory (SHM)" in said


def test_host_memory_is_as_promised_without_nvlink_or_where_peer_access_is_off(spec):
    pcie = (Level(name="inside", ranks=8, link_class="PHB"),)
    off = replace(promising(spec, levels=NVLINK), env={"NCCL_P2P_DISABLE": "1"})
    for promised in (spec, promising(spec, levels=pcie), off):
        assert warnings(fabric("SHM"), promised) == ()


def test_nvlink_between_pairs_promises_nothing_between_the_pairs(spec):
    pairs = (Level(name="bridge", ranks=2, link_class="NV4"), Level(name="host", ranks=8, link_class="SYS"))
    assert warnings(fabric("P2P/CUMEM", "SHM"), promising(spec, levels=pairs)) == ()


def test_tcp_where_there_are_cards(spec):
    cards = promising(spec, nics=(Nic(name="mlx5_0", near=(0,)),))
    (said,) = warnings(fabric("P2P/CUMEM", "NET/Socket"), cards)
    assert "over TCP (NET/Socket)" in said
    assert "mlx5_0" in said
    assert warnings(fabric("NET/IB/GDRDMA"), cards) == ()


def test_its_own_warnings_and_nothing_without_its_log(spec):
    assert warnings(fabric("P2P/CUMEM", warnings=("out of cheese",)), spec) == ("NCCL warned: out of cheese",)
    assert warnings(Fabric(), spec) == ()


def test_in_words():
    choice = NcclChoice(
        collective="AllReduce", algorithm="NVLS", protocol="SIMPLE", bytes_min=2**20, bytes_max=2**26
    )
    log = fabric("P2P/CUMEM", in_network=("NVLS",), choices=(choice,)).nccl
    assert nccl_lines(log) == (
        "NCCL 2.27.5, 8 ranks: P2P/CUMEM; with NVLS the switches add up: a share above 100 % is no error",
        "AllReduce by NVLS, SIMPLE: 1 MiB to 64 MiB",
    )
    assert nccl_lines(None) == ()
