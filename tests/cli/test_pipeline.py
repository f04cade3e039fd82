"""What is read back beside the rank files."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest
from support.tables import collected

from scaling.analysis.results import PeakMemory
from scaling.cli.pipeline import read_analysis, rebuild
from scaling.records.files import add_line
from scaling.records.paths import RunFolder
from scaling.report.findings import memory_line

MIB = 2**20


@pytest.fixture
def run(cluster, simulate, tmp_path):
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=3), folder.path)
    return folder


def noted(peak, communicators=None):
    return {"peak_bytes": peak, "communicators_bytes": communicators}


def test_memory_is_that_of_the_rank_that_held_most_at_each_world_size(run):
    launch = run.launch(0)
    sizes = ({"1": noted(900 * MIB), "2": noted(500 * MIB, 7 * MIB)}, {"2": noted(600 * MIB, 6 * MIB)})
    for rank, held in enumerate(sizes):
        add_line(launch.memories(rank), {"rank": rank, "world_sizes": held})
    one, two = rebuild(run).analysis.points
    assert one.memory == PeakMemory(peak_bytes=900 * MIB)
    assert two.memory == PeakMemory(peak_bytes=600 * MIB, communicators_bytes=7 * MIB)
    said = " ".join(run.report_txt.read_text().split())
    assert "600 MiB a rank at most (resident); 7 MiB for the group's communicator" in said


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"rank": 0, "peak_bytes": 5}', '{"rank": 0, "world_sizes": {"1": {"peak_bytes": null}}}'],
)
def test_where_nothing_was_noted_nothing_is_said(run, text):
    run.launch(0).memories(0).write_text(text)
    analysis = rebuild(run).analysis
    assert {p.memory for p in analysis.points} == {PeakMemory()}
    assert "a rank at most" not in run.report_txt.read_text()


def test_memory_in_words():
    assert memory_line(PeakMemory(peak_bytes=3 * MIB), "cuda") == "3 MiB a rank at most (allocated by torch)"


# NCCL's own log

LOG = """\
node0:41:41 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
node0:41:97 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 - Init START
node0:41:97 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
node0:41:97 [0] NCCL INFO NVLS comm 0x55d0 headRank 0 nHeads 2 buffSize 1048576
"""


def test_the_way_that_nccl_took_stands_in_every_report(cluster, simulate, tmp_path):
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=3, channels=1), folder.path)
    folder.launch(0).nccl_log("node0", "41").write_text(LOG)
    nccl = rebuild(folder).analysis.fabric.nccl
    assert (nccl.version, nccl.groups[0].transports, nccl.groups[0].in_network) == (
        "2.27.5",
        ("NET/Socket",),
        ("NVLS",),
    )
    for report in (folder.report_txt, folder.report_html, folder.report_md):
        said = " ".join(report.read_text().split())
        assert "NCCL 2.27.5, 2 ranks: NET/Socket; with NVLS the switches add up" in said
    assert read_analysis(folder).fabric.nccl == nccl


def test_a_slow_path_is_laid_beside_what_nccl_says_it_took(cluster, simulate, tmp_path):
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(2,), hosts=2, rounds=3, channels=1), folder.path)
    plan = json.loads(folder.plan.read_text())
    plan["spec"]["topology"]["link"]["rate_bit_s"] *= 4
    folder.plan.write_text(json.dumps(plan))
    folder.launch(0).nccl_log("node0", "41").write_text(LOG)
    (slow,) = [v for v in rebuild(folder).analysis.verdicts if v.cause == "slow_path"]
    assert "NCCL's log names NET/Socket" in slow.evidence


def test_gloo_has_no_such_log(run):
    run.launch(0).nccl_log("node0", "41").write_text(LOG)
    assert rebuild(run).analysis.fabric.nccl is None


# Telemetry


def sampled(cluster, folder, fake_nvml, mhz):
    """Each host has one GPU that told its clock (`mhz` by arm, else 2000) ten times a block."""
    from scaling.hardware.host import Host
    from scaling.hardware.nvml import Gpus
    from scaling.hardware.sampler import head, sample

    launch, blocks = folder.launch(0), collected(folder).blocks
    for rank in range(2):
        nvml = fake_nvml(1)
        gpus, host = Gpus(nvml), Host(folder.path)  # no /proc there: nothing of this machine
        path = launch.envs(rank) if rank else launch.env(0)
        cluster.write_facts(launch, rank, json.loads(path.read_text()) | {"device_uuid": nvml.gpus[0].uuid})
        lines = [head(rank, gpus, host)]
        own = blocks.filter(pl.col("rank") == rank).sort("begin_ns")
        for arm, begin, end in own.select("arm", "host_begin_ns", "host_end_ns").iter_rows():
            nvml.gpus[0].sm_mhz = mhz.get(arm, 2000)
            nvml.gpus[0].reasons = 0x40 if arm in mhz else 0
            lines += [sample(gpus, host) | {"time_ns": begin + k * (end - begin) // 10} for k in range(1, 10)]
        launch.telemetry(rank).write_text("\n".join(map(json.dumps, lines)) + "\n")


def test_lower_clocks_and_power_come_from_the_hosts_telemetry(cluster, simulate, tmp_path, fake_nvml):
    folder = RunFolder(tmp_path / "run")
    truth = cluster.Truth(world_sizes=(2,), hosts=2, rounds=4, steps=30, neighbours=1.12, channels=1)
    simulate(truth, folder.path)
    sampled(cluster, folder, fake_nvml, dict.fromkeys(("bare_all", "ddp_solo", "plain", "probe"), 1800))
    analysis = rebuild(folder).analysis
    (point,) = analysis.points
    assert (point.clocks.alone_mhz.value, point.clocks.together_mhz.value) == (2000, 1800)
    assert point.loss.clocks.low > 0
    assert analysis.verdicts[0].share is not None
    (verdict,) = [v for v in analysis.verdicts if v.cause == "clocks"]
    assert "2000 MHz alone" in verdict.evidence[0]
    assert any("rank 1's device slowed itself down" in line for line in verdict.evidence)
    assert point.cost.power_w.value == pytest.approx(1300)  # two boards of 650 W
    assert point.cost.samples_per_joule.value == pytest.approx(point.samples_per_s.value / 1300)
    said = " ".join(folder.report_txt.read_text().split())
    assert "lower clocks" in said
    assert "of all ranks' GPU boards" in said
    assert "throttled:" in said


# Without status.json


def test_records_that_are_whole_speak_for_themselves(cluster, simulate, tmp_path):
    folder = RunFolder(tmp_path)
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=1, ranks_per_host=2, rounds=3), folder.path)
    folder.status.unlink()
    assert rebuild(folder).exit_code == 0
    last = folder.launch(0).rank(1)
    last.write_bytes(last.read_bytes()[:-40])
    trials = rebuild(folder).analysis.trials
    assert [(t.world_size, t.status, t.error) for t in trials] == [
        (1, "done", None),
        (2, "lost", "status.json is missing"),
    ]


# Clocks of other hosts

DAYS_NS = 3 * 86_400 * 10**9


def test_a_host_that_booted_days_before_changes_nothing_but_its_own_times(cluster, simulate, tmp_path):
    truth = cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=4, block_noise=0.05, clock_bound_ns=0)
    found = []
    for name, ahead_ns in (("together", 0), ("apart", DAYS_NS)):
        folder = RunFolder(tmp_path / name)
        simulate(replace(truth, clock_offset_ns=(0, ahead_ns)), folder.path)
        folder.status.unlink()  # as of an own loop: how long it took is then told by the blocks
        found.append((rebuild(folder).analysis, collected(folder).blocks))
    (together, blocks), (apart, shifted) = found
    assert apart == together
    assert apart.run.duration_s < 60
    assert any("would take about" in line for line in apart.quality.reached)
    own = ["host_begin_ns", "host_end_ns"]
    assert shifted.drop(own).equals(blocks.drop(own))
    away = (shifted["host_begin_ns"] - blocks["host_begin_ns"]).to_list()
    assert away == [DAYS_NS * rank for rank in blocks["rank"]]


def test_telemetry_meets_the_blocks_of_its_own_host_whatever_its_clock(
    cluster, simulate, tmp_path, fake_nvml
):
    folder = RunFolder(tmp_path / "run")
    truth = cluster.Truth(world_sizes=(2,), hosts=2, rounds=3, channels=1, clock_offset_ns=(0, DAYS_NS))
    simulate(truth, folder.path)
    sampled(cluster, folder, fake_nvml, {"plain": 1800})
    (point,) = rebuild(folder).analysis.points
    assert [(t.rank, t.reasons) for t in point.clocks.throttled] == [(r, ("hw_thermal",)) for r in (0, 1)]
