"""Two ranks of one H100 over NCCL, whose truth is known from paired plain steps (shared/data/nccl_one_h100)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.traces import SHARED

from scaling.analysis.run import derive
from scaling.records.paths import RunFolder
from scaling.report.answer import answer

RECORDS = SHARED / "nccl_one_h100"


@pytest.fixture(scope="module", params=["own", "ownlate", "resnet", "vary"])
def named(request, tmp_path_factory):
    """(name, analysis) of each record."""
    if not (RECORDS / request.param).is_dir():
        pytest.skip(
            f"no {RECORDS / request.param}: records of two NCCL ranks (SCALING_SHARED_DATA names the folder)"
        )
    folder = tmp_path_factory.mktemp(request.param) / "run"
    shutil.copytree(RECORDS / request.param, folder, copy_function=shutil.copyfile)
    return request.param, derive(RunFolder(folder))[0].analysis


def test_a_page_says_of_what_stamps_disturb_that_they_do(tmp_path):
    source = RECORDS / "ownlate"
    if not source.is_dir():
        pytest.skip(f"no {source}: records of two NCCL ranks (SCALING_SHARED_DATA names the folder)")
    folder = tmp_path / "run"
    shutil.copytree(source, folder, copy_function=shutil.copyfile)
    command = [Path(sys.executable).with_name("scaling"), "analyze", folder]
    subprocess.run(command, check=True, capture_output=True)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "(of steps that stamps disturb)" in page
    assert "Stamps of collectives disturb it" in page


def test_nothing_rests_on_stamps_that_were_not_shown_to_leave_the_step_alone(named):
    name, analysis = named
    details, point = analysis.quality.details, analysis.points[-1]
    assert details.unused
    assert details.disturbs == (name == "ownlate")
    assert point.loss.link_bandwidth is None
    assert point.loss.link_latency is None
    assert point.closure is None
    assert not {v.cause for v in analysis.verdicts} & {"link_bandwidth", "link_latency", "launch_bound"}
    assert point.comm.busbw_gbit_s is not None


def test_the_late_rank_is_named_by_its_own_time_and_nobody_else(named):
    name, analysis = named
    late = analysis.points[-1].straggler
    if name != "ownlate":
        assert late is None
        return
    assert (late.rank, late.phase) == (1, "input")
    assert late.cost_ms.least < 32
    assert late.cost_ms.most > 22
    assert {v.cause for v in analysis.verdicts if v.confidence == "high"} == {"straggler"}
    (moved,) = [rank for rank in analysis.quality.details.ranks if rank.rank == 0]
    assert moved.detailed_ms.value > 2 * moved.light_ms.value  # it stood still behind its first bucket


def test_without_a_fault_no_share_exceeds_what_a_step_waits_behind_backward(named):
    name, analysis = named
    if name == "own":
        parts, step = analysis.points[-1].parts_ms, analysis.points[-1].arms_ms.probe
        shares = [v.share.value for v in analysis.verdicts if v.share]
        assert max(shares) <= 1.85 / step.value  # mean of both ranks, read off the light stamps by hand
        assert parts.exposed_transfer.value < 1.85


def test_one_gpu_shared_is_said_before_any_figure(named):
    _, analysis = named
    assert answer(analysis).startswith("One GPU shared by 2 ranks. ")
    said = [line for v in analysis.verdicts if v.cause == "neighbours" for line in v.evidence]
    assert not any("a host" in line for line in said)
    if said:
        assert said[-1] == "it would take a device for each rank"


def test_had_details_been_believed_their_figures_would_exclude_each_other(monkeypatch, tmp_path):
    """12.4 ms of waiting for data, beside 0.9 ms that the bytes take: no verdict is made of either."""
    if not (RECORDS / "ownlate").is_dir():
        pytest.skip(f"no {RECORDS / 'ownlate'}: records of two NCCL ranks")
    monkeypatch.setattr("scaling.analysis.quality.details.details", lambda *_: None)
    shutil.copytree(RECORDS / "ownlate", tmp_path / "run", copy_function=shutil.copyfile)
    verdicts = derive(RunFolder(tmp_path / "run"))[0].analysis.verdicts
    assert not {v.cause for v in verdicts} & {"link_bandwidth", "link_latency"}
    (why,) = [v for v in verdicts if v.cause == "undecided"]
    assert any("ms for data, and 97.5 MiB at 914 Gbit/s take" in line for line in why.evidence)
