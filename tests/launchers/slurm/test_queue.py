"""What Slurm's commands print. slurm-22.05/ was recorded on the test cluster; the rest follows Slurm's manual pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaling.errors import InputError, ScalingError
from scaling.launchers.slurm import queue
from scaling.launchers.slurm.queue import JobState, parse_sacct, parse_scontrol, parse_squeue, state_of
from scaling.launchers.slurm.script import hand_in, refusal

RECORDED = Path(__file__).with_name("slurm-22.05")


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def test_a_waiting_job():
    expected = JobState(state="PENDING", reason="Resources", start="2026-11-21T20:30:30", left="1:00:00")
    assert parse_squeue(recorded("squeue-pending")) == expected
    assert not expected.over


def test_a_running_job():
    found = parse_squeue(recorded("squeue-running"))
    assert (found.state, found.nodes, found.left, found.reason) == ("RUNNING", "pcie[1-2]", "59:59", "")


@pytest.mark.parametrize("text", ["", "\n", recorded("squeue-unknown")])
def test_a_job_that_squeue_does_not_know(text):
    assert parse_squeue(text) is None


@pytest.mark.parametrize(
    ("name", "state", "nodes", "code"),
    [
        ("pending", "PENDING", "", 0),
        ("running", "RUNNING", "pcie[1-2]", 0),
        ("failed", "FAILED", "nvlink1", 3),
        ("cancelled", "CANCELLED", "pcie[1-2]", 128 + 15),
        ("cancelled-before-start", "CANCELLED", "", 0),
    ],
)
def test_what_scontrol_remembers(name, state, nodes, code):
    found = parse_scontrol(recorded(f"scontrol-{name}"))
    assert (found.state, found.nodes, found.exit_code) == (state, nodes, code)


def test_a_job_that_scontrol_forgot():
    assert parse_scontrol(recorded("scontrol-unknown")) is None


def test_newer_versions_say_more_about_a_job():
    """23.02 and later add pairs (here some of their manual's) and print the job's steps of failure differently."""
    later = recorded("scontrol-failed").replace("JobState=", "SLUID=s1 StepMgrEnabled=Yes JobState=", 1)
    assert parse_scontrol(later) == parse_scontrol(recorded("scontrol-failed"))


@pytest.mark.parametrize(
    ("line", "state", "code"),
    [
        ("COMPLETED|0:0|pcie[1-2]|2026-11-21T19:00:00", "COMPLETED", 0),
        ("CANCELLED by 1000|0:15|pcie1|2026-11-21T19:00:00", "CANCELLED", 143),
        ("CANCELLED by 0|0:0|None assigned|Unknown", "CANCELLED", 0),
        ("OUT_OF_ME+|0:125|pcie1|2026-11-21T19:00:00", "OUT_OF_ME", 128 + 125),
        ("NODE_FAIL|1:0|pcie[1-2]|2026-11-21T19:00:00", "NODE_FAIL", 1),
    ],
)
def test_accounting_where_there_is_some(line, state, code):
    found = parse_sacct(line + "\n")
    assert (found.state, found.exit_code) == (state, code)


def test_accounting_knows_every_start_of_a_requeued_job_and_the_last_one_counts():
    lines = "PREEMPTED|0:0|pcie1|2026-11-21T19:00:00\nRUNNING|0:0|pcie2|2026-11-21T19:05:00\n"
    assert parse_sacct(lines).state == "RUNNING"


def test_no_accounting():
    assert parse_sacct(recorded("sacct-off")) is None


@pytest.mark.parametrize(
    ("name", "words", "key"),
    [
        ("partition", "invalid partition specified: nosuch; Invalid partition name", "cluster.partition"),
        ("nodes", "Node count specification invalid", "topology.hosts"),
        ("time", "Requested time limit is invalid", "cluster.time"),
        ("feature", "Invalid feature specification", "cluster.constraint"),
        ("reservation", "Requested reservation is invalid", "cluster.reservation"),
        ("gres", "Requested node configuration is not available", "cluster.gpus_per_node"),
        ("option", "unrecognized option '--bogus'", ""),
    ],
)
def test_a_refusal_is_slurms_own_words_and_the_key(name, words, key):
    said = refusal(recorded(f"sbatch-{name}"))
    assert said.startswith("sbatch: ")
    assert words in said
    assert key in said
    assert "\n" not in said


def test_refusals_that_need_accounting_to_happen():
    said = refusal(
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    )
    assert said.endswith("specified (cluster.account)")
    said = refusal("sbatch: error: Batch job submission failed: Invalid qos specification")
    assert said.endswith("(cluster.qos)")


def failing(stderr: str) -> str:
    return f"echo '{stderr.strip()}' >&2; exit 1"


def test_a_job_is_gone_where_slurm_says_that_it_knows_none_of_that_number(command):
    command("squeue", failing(recorded("squeue-unknown")))
    command("scontrol", failing(recorded("scontrol-unknown")))
    assert state_of("7") is None


@pytest.mark.parametrize("asked", ["squeue", "scontrol"])
@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "",
    ],
)
def test_a_controller_that_tells_nothing_is_no_lost_job(command, asked, said):
    command("squeue", failing(recorded("squeue-unknown")))
    command("scontrol", failing(recorded("scontrol-unknown")))
    command(asked, failing(said))
    with pytest.raises(ScalingError, match=re.escape(f"{asked}: {said or 'it failed and printed nothing'}")):
        state_of("7")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("exec /bin/sleep 60", "no answer from Slurm within 0.2 s"),
        (
            failing("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"),
            "Socket timed out on send/recv operation",
        ),
    ],
    ids=["silent", "late"],
)
def test_a_job_that_slurm_may_have_taken_is_not_a_refused_one(command, monkeypatch, line, said):
    monkeypatch.setattr(queue, "ASK_S", 0.2)
    command("sbatch", line)
    with pytest.raises(ScalingError, match=f"{said}; the job may be queued all the same") as found:
        hand_in("#!/bin/sh\n")
    assert not isinstance(found.value, InputError)
    assert "\n" not in str(found.value)
