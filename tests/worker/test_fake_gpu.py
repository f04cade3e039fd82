"""A whole launch on a device made of fakes: events, NVML and two real ranks, from the first stamp to the report."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from support.commands import environment
from support.gloo_ranks import free_address
from support.tables import collected

from scaling.cli.pipeline import rebuild
from scaling.config.compose import requests
from scaling.launchers.failure.cause import cause
from scaling.launchers.failure.evidence import gather
from scaling.records.files import write_json
from scaling.records.paths import RunFolder
from scaling.records.run import LaunchStatus, read_plan, status_of
from scaling.settings.plan import make_plan

pytestmark = pytest.mark.slow  # a whole launch of two ranks

SCRIPT = Path(__file__).with_name("fake_gpu_rank.py")
MS = 1_000_000
START_S = 60
"""What two ranks may take to import torch and find each other on a busy machine."""
END_S = 30
"""From a fault until no rank is left, at most: a group's time-out and the slices in which idle ranks look."""
SHORT = (
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "model=mlp",
    "model.width=64",
    "ddp.bucket_cap_mb=0.01",
    "batch_per_rank=16",
    "world_sizes=[1,2]",
    "measure=quick",
    "measure.budget_s=4",
    "measure.steps=4",
    "measure.lead_in=1",
    "measure.fabric_max=4KiB",
    "measure.step_timeout_s=10",
    "tracking=disabled",
)


def launch(path, fault="", precision="fp32", waited_for=(0, 1)):
    """Start both ranks; wait for these to end, within their bound, and end the other: (folder, their exit codes)."""
    (asked,) = requests("run", [*SHORT, f"precision={precision}"]).items
    topology = dataclasses.replace(asked.spec.topology, device="cuda")
    spec = dataclasses.replace(asked.spec, topology=topology)
    plan = make_plan(spec, run_id="fake", created="2026-01-01T00:00:00+00:00", version="0")
    folder = RunFolder(path)
    folder.launch(0).path.mkdir(parents=True)
    write_json(folder.plan, plan)
    variables = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_address().rpartition(":")[2],
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(SCRIPT), str(path), "1,2", *filter(None, [fault])]
    end = time.monotonic() + START_S + END_S
    ranks = [
        subprocess.Popen(command, env=environment({**variables, "RANK": str(rank)})) for rank in range(2)
    ]
    try:
        codes = [
            process.wait(timeout=max(1.0, end - time.monotonic()))
            for process in (ranks[rank] for rank in waited_for)
        ]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return folder, codes


def said_by(folder):
    return "\n".join(path.read_text() for path in sorted(folder.launch(0).path.glob("log-*.txt")))


def finished(folder, sizes, too_large=()):
    """status.json, as a launcher would leave it."""
    state = LaunchStatus(
        index=0, world_sizes=(1, 2), state="done", finished=sizes, too_large=too_large, duration_s=5.0
    )
    write_json(folder.status, status_of(read_plan(folder), [state]))


def sampled(folder, nvml):
    """The host's telemetry, ten samples a block of either rank."""
    from scaling.hardware.devices import Host
    from scaling.hardware.nvml import Gpus
    from scaling.hardware.sampler import head, sample

    gpus, host = Gpus(nvml), Host(folder.path)  # no /proc there: nothing of this machine
    blocks = collected(folder).blocks.filter(pl.col("rank") == 0).sort("begin_ns")
    lines = [head(0, gpus, host)]
    for begin, end in blocks.select("begin_ns", "end_ns").iter_rows():
        lines += [sample(gpus, host) | {"time_ns": begin + k * (end - begin) // 10} for k in range(1, 10)]
    folder.launch(0).telemetry(0).write_text("\n".join(map(json.dumps, lines)) + "\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory, fake_nvml):
    """A launch that came to its end; rank 1's device throttles, its link is at half its width, and rank 0's is mute."""
    folder, codes = launch(tmp_path_factory.mktemp("fake") / "run")
    assert codes == [0, 0], said_by(folder)
    nvml = fake_nvml(2)
    nvml.gpus[1].reasons, nvml.gpus[1].width = 0x40, 8
    nvml.gpus[0].lacks |= {"Temperature", "PowerUsage", "ClockInfo"}
    finished(folder, (1, 2))
    sampled(folder, nvml)
    return folder, rebuild(folder).analysis


def test_every_arm_of_both_world_sizes_was_measured_with_events(run):
    folder, analysis = run
    one, two = analysis.points
    assert one.step_ms.value > 0
    assert all(arm is not None for arm in dataclasses.asdict(two.arms_ms).values())
    steps = collected(folder).steps.filter(pl.col("arm") == "probe")
    phases = sum(steps[f"{name}_ns"] for name in ("input", "forward", "backward", "optimizer"))
    assert (steps["end_ns"] - steps["begin_ns"] - phases).min() > -MS  # what is left is the host's
    noted = json.loads(folder.launch(0).memories(0).read_text().splitlines()[-1])
    assert 0 < noted["device_clock_bound_ns"] < 50 * MS


def test_buckets_are_in_one_time_whether_host_or_device_stamped_them(run):
    folder, analysis = run
    (two,) = [p for p in analysis.points if p.world_size == 2]
    assert len(two.comm.buckets) > 1
    assert two.comm.busbw_gbit_s.value > 0
    rows = collected(folder).buckets.filter((pl.col("arm") == "probe") & pl.col("detailed"))
    assert rows.height > 0
    bound = analysis.quality.device_clock_bound_us * 1e3 + 1_000
    assert (rows["done_ns"] - rows["launch_ns"]).min() > -bound
    assert (
        rows["launch_ns"] - rows["ready_ns"]
    ).min() == 0  # on a device a bucket is ready when it is launched
    assert 0 < two.comm.least_share.value <= 1


def test_how_well_the_device_s_clock_is_known_stands_in_the_report(run):
    folder, analysis = run
    assert analysis.quality.device_clock_bound_us > 0
    assert "the devices' events are told in host time to within" in " ".join(
        folder.report_txt.read_text().split()
    )


def test_the_throttling_rank_and_the_narrow_link_are_named(run):
    _, analysis = run
    (seen,) = analysis.points[-1].clocks.throttled
    assert (seen.rank, seen.reasons) == (1, ("hw_thermal",))
    said = "\n".join(analysis.quality.warnings)
    assert "slowed itself down (rank 1)" in said
    assert "rank 1: GPU 1: its PCIe link runs at x8 of x16 under load" in said
    assert "host-staged" in said


def test_what_a_device_does_not_tell_is_null(run):
    folder, analysis = run
    samples = folder.launch(0).telemetry(0).read_text().splitlines()[1:]
    gpu = json.loads(samples[0])["gpus"][0]
    assert [gpu[name] for name in ("temperature_c", "power_mw", "sm_mhz")] == [None] * 3
    assert gpu["pcie_width"] == 16
    assert analysis.points[-1].cost.power_w is None


def test_out_of_memory_in_the_first_step_is_agreed_on(tmp_path):
    folder, codes = launch(tmp_path / "run", "oom@1@1")
    assert codes == [0, 0], said_by(folder)
    assert folder.launch(0).out_of_memory(2).exists()
    finished(folder, (1,), too_large=(2,))
    assert {t.world_size: t.status for t in rebuild(folder).analysis.trials} == {1: "done", 2: "oom"}


def test_a_rank_whose_data_come_later_than_a_collective_waits_is_waited_for(tmp_path):
    folder, codes = launch(tmp_path / "run", "late@1@12")  # measure.step_timeout_s is 10
    assert codes == [0, 0], said_by(folder)


def test_out_of_memory_later_ends_both_and_is_called_that(tmp_path):
    folder, codes = launch(tmp_path / "run", "oom@1@60")
    assert codes == [1, 1]
    found = cause(gather(folder.launch(0)), folder.launch(0))
    assert (found.status, found.rank, found.out_of_memory) == ("failed", 1, True)
    assert "OutOfMemoryError: CUDA out of memory" in found.error


def test_a_device_that_falls_off_ends_both_and_names_its_rank(tmp_path):
    folder, codes = launch(tmp_path / "run", "lost@1@1500")
    assert codes == [1, 1]
    found = cause(gather(folder.launch(0)), folder.launch(0))
    assert (found.status, found.rank, found.world_size) == ("failed", 1, 2)
    assert "RuntimeError: CUDA error: unspecified launch failure" in found.error


def test_a_precision_that_one_device_lacks_is_said_by_its_rank(tmp_path):
    # Rank 0 waits for rank 1 to join; a launcher ends it seconds after the first error.
    folder, codes = launch(tmp_path / "run", "old@1@0", precision="bf16", waited_for=[1])
    assert codes == [1]
    found = cause(gather(folder.launch(0)), folder.launch(0))
    assert found.rank == 1
    assert "precision=bf16: Fake H100 does not have it; it has fp32, fp16" in found.error
