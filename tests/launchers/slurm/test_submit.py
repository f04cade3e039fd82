"""Handing a job in: what becomes of its folder, and of the job, when something goes wrong on the way.

Which nodes each allocation of a run leaves to the others.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from dataclasses import replace

import pytest

from scaling.analysis.results import InferenceCase
from scaling.cli.measuring import analyse
from scaling.cli.pipeline import rebuild
from scaling.cli.verbs import submit as verb
from scaling.config.compose import requests
from scaling.errors import InputError, ScalingError
from scaling.launchers.jobs import jobs_of
from scaling.launchers.slurm import queue
from scaling.launchers.slurm import script as sbatch
from scaling.launchers.slurm.queue import SCHEMA, Jobs, Submitted
from scaling.launchers.slurm.submit import (
    excluded,
    nodes_of,
    one_allocation,
    script,
    settle,
    shares,
    standing,
    submit,
)
from scaling.records.files import write_json
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan

UNNOTED = "/bin/mkdir {run}/jobs.json; echo 7"
"""sbatch takes the job, and jobs.json cannot be written any more."""


@pytest.fixture
def job(tmp_path):
    asked = requests("submit", ["topology=pcie_node", "model=synthetic", f"run_dir={tmp_path / 'run'}"])
    return jobs_of(asked.items, multirun=False)[0]


def test_a_job_that_was_taken_is_noted(job, command):
    command("sbatch", "echo '7;cluster'")
    assert submit(job, script(job)).id == "7"
    assert [one["id"] for one in json.loads(job.folder.jobs.read_text())["jobs"]] == ["7"]


def test_a_shells_own_options_do_not_override_what_the_script_says(job, command, monkeypatch):
    """To sbatch its variables come before a script's directives."""
    overriding = ("PARTITION", "TIMELIMIT", "NO_REQUEUE", "ARRAY_INX", "WAIT")
    for name in (*overriding, "ACCOUNT"):
        monkeypatch.setenv(f"SBATCH_{name}", "theirs")
    command("sbatch", "set | /bin/grep ^SBATCH_ > {here}/seen; echo 7")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/bin")
    submit(job, script(job))
    seen = (job.folder.path.parent / "seen").read_text()
    assert "ACCOUNT=" in seen  # nothing here says one
    assert not [name for name in overriding if f"SBATCH_{name}=" in seen]


def test_an_answer_without_a_jobs_number_is_no_job(job, command):
    command("sbatch", "echo")
    with pytest.raises(ScalingError, match="printed no job's number") as found:
        submit(job, script(job))
    assert not isinstance(found.value, InputError)


def test_a_comparison_that_slurm_does_not_take_is_said_and_the_jobs_are_followed(job, command, capsys):
    command(
        "sbatch",
        "echo 'sbatch: error: Batch job submission failed: Job violates accounting policy' >&2; exit 1",
    )
    job.folder.path.parent.mkdir(exist_ok=True)
    assert verb._compared([(job.plan, job.folder)], [Submitted(id="7", at="", partition=None)]) is None
    assert (
        "violates accounting policy (cluster.account); run `scaling compare` when the jobs have ended"
        in capsys.readouterr().err
    )


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

    monkeypatch.setattr(sbatch, "hand_in", interrupted)
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

    monkeypatch.setattr("scaling.launchers.slurm.submit.write_text", full)
    with pytest.raises(InputError, match=r"run: cannot be written \(No space left on device\); make room$"):
        submit(job, script(job))
    assert not job.folder.path.exists()


# Followed to its end


@pytest.fixture
def ended(cluster, simulate, tmp_path, command):
    """A run whose status.json says that everything is done."""
    command("sbatch", "exit 1")
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=1, ranks_per_host=2, rounds=3), folder.path)
    return folder


def followed(folder):
    return verb.main(["--resume", str(folder.path), "--wait"])


def test_a_run_that_is_whole_ends_the_wait_with_0(ended):
    assert followed(ended) == rebuild(ended).exit_code == 0


def test_records_that_are_cut_off_end_it_as_they_end_a_run(ended):
    last = ended.launch(0).rank(1)
    last.write_bytes(last.read_bytes()[:-40])
    assert followed(ended) == rebuild(ended).exit_code == 3


def test_so_does_a_case_that_could_not_be_measured(ended):
    case = InferenceCase(world_size=2, batch=8, precision="fp32", autocast=False, compile=False, status="oom")
    write_json(ended.analysis, dataclasses.replace(rebuild(ended).analysis, inference=(case,)))
    assert followed(ended) == 3


def test_how_somebody_elses_job_ended_is_said_and_not_written_into_their_folder(ended, command, monkeypatch):
    write_json(ended.jobs, Jobs(schema=SCHEMA, jobs=(Submitted(id="7", at="", partition=None),)))
    for name in ("squeue", "scontrol"):
        command(name, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    known = json.loads(ended.status.read_text())
    for trial in known["trials"]:
        trial["status"] = "running"
    ended.status.write_text(json.dumps(known))
    before = ended.status.read_bytes()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    settled = settle(standing(ended, read_plan(ended)), analyse)
    assert settled.status.state == "lost"
    assert ended.status.read_bytes() == before


SINFO = "a1 idle gpu*\na2 alloc gpu*\na3 drain gpu*\na4 down* gpu*\nb1 mix big\na1 idle big\n"


@pytest.fixture
def asked():
    """asked(*overrides): the request of a run on one node."""

    def request(*overrides: str):
        return requests("submit", ["topology=pcie_node", "model=synthetic", *overrides]).items[0]

    return request


@pytest.fixture
def sinfo(command):
    """What sinfo and `scontrol show hostnames` print."""
    command("sinfo", f"printf '{SINFO}'")
    command("scontrol", "echo a2")


def test_nodes_that_get_no_jobs_are_marked():
    assert nodes_of(SINFO, default=True) == {"a1": True, "a2": True, "a3": False, "a4": False}
    assert nodes_of(SINFO, default=False)["b1"]


@pytest.mark.parametrize(("nodes", "allocations", "hosts"), [(2, 2, 1), (7, 3, 2), (64, 5, 12), (9, 9, 1)])
def test_shares_have_no_node_in_common_and_leave_none_out(nodes, allocations, hosts):
    names = [f"n{k}" for k in range(nodes)]
    found = shares(names, allocations, hosts, "gpu")
    assert [name for share in found for name in share] == names
    assert len(found) == allocations
    assert min(map(len, found)) >= hosts


@pytest.mark.parametrize(
    ("nodes", "would"), [(5, "partition gpu has 5 that get jobs; at most 2 of them"), (1, "`sinfo` lists")]
)
def test_too_few_nodes_are_refused_with_what_would_do(nodes, would):
    with pytest.raises(InputError, match=r"cluster\.allocations=3: 3 x 2 nodes are needed") as refused:
        shares([f"n{k}" for k in range(nodes)], 3, 2, "gpu")
    assert would in str(refused.value)


def test_one_allocation_asks_slurm_nothing(asked, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert excluded(asked().spec) == [""]


@pytest.mark.usefixtures("sinfo")
def test_each_excludes_the_others_nodes_and_those_that_may_come_back(asked):
    request = asked("cluster.allocations=2")
    spec = replace(request.spec, cluster=replace(request.spec.cluster, partition=None))
    assert excluded(spec) == ["a[2-4]", "a[1,3-4]"]
    assert one_allocation(request).spec.cluster.allocations == 1


@pytest.mark.usefixtures("sinfo")
def test_what_the_user_excludes_is_nobodys(asked):
    with pytest.raises(InputError, match="3 that get jobs; at most 3 of them"):
        excluded(asked("cluster.allocations=4").spec)
    with pytest.raises(InputError, match="2 that get jobs; at most 2 of them"):
        excluded(asked("cluster.allocations=4", "+cluster.sbatch.exclude=a2").spec)
    assert excluded(asked("cluster.allocations=2", "+cluster.sbatch.exclude=a2").spec)[0] == "a[2-4],b1"


def test_nodes_that_the_user_names_are_not_dealt_out(asked):
    with pytest.raises(InputError, match=r"leave cluster\.sbatch\.nodelist out"):
        excluded(asked("cluster.allocations=2", "+cluster.sbatch.nodelist=a1").spec)
