"""Handing a job in: what becomes of its folder, and of the job, when something goes wrong on the way."""

from __future__ import annotations

import errno
import json
import os

import pytest

from scaling.config import requests
from scaling.errors import InputError, ScalingError
from scaling.launchers import queue
from scaling.run import jobs_of
from scaling.submit import script, submit

UNNOTED = "/bin/mkdir {run}/jobs.json; echo 7"
"""sbatch takes the job, and jobs.json cannot be written any more."""


@pytest.fixture
def job(tmp_path):
    asked = requests("submit", ["topology=pcie_node", "model=synthetic", f"run_dir={tmp_path / 'run'}"])
    return jobs_of(asked.items, multirun=False)[0]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """command(name, line): a shell's line in place of one of Slurm's commands; there are no others."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def stand_in(name: str, line: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{line.format(run=tmp_path / 'run', here=tmp_path)}\n")
        path.chmod(0o755)

    return stand_in


def test_a_job_that_was_taken_is_noted(job, command):
    command("sbatch", "echo '7;cluster'")
    assert submit(job, script(job)).id == "7"
    assert [one["id"] for one in json.loads(job.folder.jobs.read_text())["jobs"]] == ["7"]


def test_a_job_that_was_refused_leaves_no_folder(job, command):
    command("sbatch", "echo 'sbatch: error: invalid partition specified: pcie' >&2; exit 1")
    with pytest.raises(InputError, match="invalid partition"):
        submit(job, script(job))
    assert not job.folder.path.exists()


def test_a_job_that_may_have_been_taken_keeps_its_folder(job, command, monkeypatch):
    monkeypatch.setattr(queue, "ASK_S", 0.2)
    command("sbatch", "exec /bin/sleep 60")
    with pytest.raises(ScalingError, match="may be queued all the same"):
        submit(job, script(job))
    assert job.folder.plan.is_file()
    assert job.folder.job_script.is_file()


def test_so_does_one_that_was_being_handed_in_at_ctrl_c(job, monkeypatch, capsys):
    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(queue, "hand_in", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(job, script(job))
    assert "its job may be queued all the same" in capsys.readouterr().err
    assert job.folder.plan.is_file()


def test_a_job_that_cannot_be_noted_is_cancelled(job, command, tmp_path):
    command("sbatch", UNNOTED)
    command("scancel", 'echo "$1" >{here}/cancelled')
    with pytest.raises(InputError, match="so job 7 was cancelled"):
        submit(job, script(job))
    assert (tmp_path / "cancelled").read_text() == "7\n"
    assert not job.folder.path.exists()


def test_where_it_cannot_be_cancelled_either_its_folder_stays(job, command):
    command("sbatch", UNNOTED)
    command("scancel", "echo 'scancel: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ScalingError, match="job 7 is queued") as found:
        submit(job, script(job))
    assert not isinstance(found.value, InputError)
    assert job.folder.plan.is_file()


def test_a_disk_that_is_full_by_then_is_said_in_a_line(job, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("scaling.submit.write_text", full)
    with pytest.raises(InputError, match=r"run: cannot be written \(No space left on device\); make room$"):
        submit(job, script(job))
    assert not job.folder.path.exists()
