"""What ends a job in the middle: finished trials stay, the status names the cause, and the rest is measured once."""

import os
import signal
import subprocess
import sys

import pytest
from support.processes import wait_until

from scaling.launchers.slurm.launcher import port
from scaling.records.launch import Launches
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan

TAKE = """
import socket, sys, time
server = socket.create_server(("", int(sys.argv[1])))
print("taken", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_cancelled_job_keeps_what_it_finished_and_resumes_the_rest(login):
    job = login.submit("repeats=2")
    login.until_measuring(launch=1)
    cancelled = login.scaling("cancel", "run")
    assert cancelled.returncode == 0, cancelled.stderr
    assert login.measured() == {1: [0], 2: [0]}
    assert login.read("analysis.json")["run"]["launches"] == 2  # the rounds of the second stay, too
    assert {status for status, _ in login.statuses().values()} == {"interrupted"}
    assert login.statuses()[2][1] == f"job {job} was cancelled"
    assert "CANCELLED" in cancelled.stdout
    done = login.finish()
    assert done.returncode == 0, done.stderr
    assert login.measured() == {1: [0, 2], 2: [0, 2]}
    assert login.scaling("submit", "--resume", "run").stdout.endswith("nothing is left to measure\n")
    assert len(login.jobs()) == 2


@pytest.mark.slow
def test_a_killed_torchrun_is_named_by_its_node_and_its_launch_repeated(login):
    job = login.submit("cluster.gpus_per_node=2")
    login.until_measuring()
    run = RunFolder(login.home / "run")
    (launch,) = Launches(run, read_plan(run))
    assert launch.facts[1]["env.CUDA_VISIBLE_DEVICES"] == "0,1"  # all of the node's
    (victim,) = login.slurm.processes("--node-rank=1")
    os.kill(victim, signal.SIGKILL)
    login.until_over(job)
    launches = login.read("status.json")["launches"]
    assert [launch["state"] for launch in launches] == ["failed", "done"]
    assert launches[0]["error"] == "torchrun on node pcie2: Killed"
    assert login.measured() == {1: [1], 2: [1]}
    assert login.state(job) == "COMPLETED"


@pytest.mark.slow
def test_a_port_that_is_taken_costs_a_launch_and_the_next_takes_another(login):
    job = login.submit("+cluster.sbatch.hold=true")
    head = login.slurm.processes("-N\0pcie1\0")[0]
    taken = ["nsenter", f"--target={head}", "--net", sys.executable, "-c", TAKE, str(port(job, 0))]
    with subprocess.Popen(taken, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "taken\n"
            login.slurm.run("scontrol", "release", job)
            login.until_over(job)
        finally:
            other.kill()
    launches = login.read("status.json")["launches"]
    assert [launch["state"] for launch in launches] == ["failed", "done"]
    assert "EADDRINUSE" in launches[0]["error"]
    assert login.measured() == {1: [1], 2: [1]}


@pytest.mark.slow
def test_what_fits_goes_on_without_a_node_that_went_down(login):
    job = login.submit()
    login.until_measuring()
    login.slurm.run("scontrol", "update", "nodename=pcie2", "state=down", "reason=test")
    login.until_over(job)
    assert login.measured() == {1: [1], 2: []}
    assert "node pcie2 failed" in login.statuses()[2][1]
    assert login.read("analysis.json")["points"][0]["step_ms"]["value"] > 0
    login.slurm.run("scontrol", "update", "nodename=pcie2", "state=resume")
    done = login.finish()
    assert done.returncode == 0, done.stderr
    assert login.measured() == {1: [1], 2: [2]}


@pytest.mark.slow
def test_a_requeued_job_goes_on_with_what_is_left(login):
    job = login.submit("repeats=2")
    login.until_measuring(launch=1)
    login.slurm.run("scontrol", "requeue", job)
    login.until_over(job)
    assert login.state(job) == "COMPLETED"
    assert login.jobs() == [job]
    assert login.measured() == {1: [0, 2], 2: [0, 2]}
    second = login.read("status.json")["launches"][1]
    assert second["state"] == "interrupted"
    assert f"job {job}" in second["error"]


def test_the_signal_before_the_time_limit_ends_in_order(login):
    """Slurm sends it to the script alone (--signal=B:TERM), as scancel does here, so as not to wait for the limit."""
    job = login.submit("measure.budget_s=100", "measure.rounds_max=99")
    assert "\n#SBATCH --signal=B:TERM@120\n" in (login.home / "run/job.sbatch").read_text()
    login.until_measuring()
    login.slurm.run("scancel", "--batch", "--signal=TERM", job)
    login.until_over(job)
    assert "its time limit is near" in login.statuses()[2][1]
    assert login.state(job) == "FAILED"  # with status 3: some trials are missing


def test_a_job_that_never_starts_says_so(login):
    blocker = login.slurm.run(
        "sbatch",
        "--parsable",
        "--partition=pcie",
        "--licenses=machine",
        "--output=/dev/null",
        "--wrap=sleep 60",
    )
    wait_until(lambda: login.state(blocker.stdout.strip()) == "RUNNING", seconds=20)
    login.submit()
    waiting = login.scaling("status", "run").stdout
    # Slurm says Licenses, Resources or nothing, by how far its scheduler has come.
    assert "PENDING (Licenses)" in waiting or "PENDING (Resources)" in waiting or "no reason given" in waiting
    again = login.scaling("submit", "--resume", "run")
    assert again.returncode == 2
    assert "is not over" in again.stderr
    job = login.jobs()[-1]
    login.slurm.run("scancel", job)
    login.until_over(job)
    said = login.scaling("status", "run").stdout
    assert f"job {job} was cancelled before anything was measured" in said
    assert login.statuses()[1] == ("interrupted", f"job {job} was cancelled before anything was measured")
    login.slurm.run("scancel", blocker.stdout.strip())


def test_a_job_that_fails_before_torchrun_says_why(login):
    job = login.submit("cluster.setup=['exit 3']")
    login.until_over(job)
    assert "status 3" in login.scaling("status", "run").stdout
    status, error = login.statuses()[1]
    assert status == "failed"
    assert error.startswith(f"job {job} ended before anything was measured: FAILED, status 3")


def test_a_folder_that_the_nodes_do_not_see_is_named(login):
    """The login node alone has something mounted there."""
    mount = login.slurm.run("mount", "-t", "tmpfs", "none", str(login.home))
    assert mount.returncode == 0, mount.stderr
    try:
        done = login.scaling("submit", "topology=slurm_pcie", "model=synthetic", "run_dir=run", "--wait")
    finally:
        login.slurm.run("umount", "--lazy", str(login.home))
    assert done.returncode == 1
    assert "could not write" in done.stderr
    assert "put the run on a file system that the nodes share (run_dir)" in done.stderr
