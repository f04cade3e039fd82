"""The way that NCCL took, in the analysis and beside what the topology promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.analysis.network.nccl_log import warnings
from scaling.analysis.results import Fabric, NcclChoice, NcclGroup, NcclLog
from scaling.report.findings import nccl_lines
from scaling.settings.topology import Level, Nic


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
