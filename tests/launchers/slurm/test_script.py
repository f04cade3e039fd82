"""The script of a job, as text."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import planned

from scaling.errors import InputError
from scaling.launchers.slurm.script import compare_script, job_script, minutes, too_short
from scaling.records.paths import RunFolder
from scaling.resources import folder
from scaling.settings.cases import LAUNCHES_MAX, PROOFS_MAX
from scaling.settings.timeouts import joining
from scaling.settings.topology import START_IN_IMAGE_S, START_S

TEMPLATE = (folder("slurm") / "job.sbatch").read_text()


plan_of = functools.cache(planned)


def script_of(*overrides: str, run: str = "/runs/one") -> str:
    return job_script(
        TEMPLATE,
        plan_of(*overrides),
        RunFolder(run),
        python="/env/bin/python",
        cwd=Path("/my work"),
        root=Path("/lib"),
    )


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_what_is_asked_for():
    found = directives(
        script_of(
            "topology=nvlink_node", "topology.hosts=2", "cluster.account=me", "+cluster.sbatch.mail-type=END"
        )
    )
    assert found == [
        "job-name=scaling-nvlink_node",
        "nodes=2",
        "ntasks-per-node=1",
        "output=/runs/one/slurm-%j.out",
        "open-mode=append",
        "time=19",
        "no-kill",
        "requeue",
        "signal=B:TERM@120",
        "partition=nvlink",
        "account=me",
        "gpus-per-node=8",
        "exclusive",
        "mem=0",
        "mail-type=END",
    ]


def test_a_well_known_machine_on_slurm():
    found = directives(
        script_of("topology=hgx_h100", "topology.hosts=2", "launcher=slurm", "cluster.partition=h100")
    )
    assert {"nodes=2", "gpus-per-node=8", "partition=h100", "job-name=scaling-hgx_h100"} <= set(found)


def test_a_sites_own_ways():
    found = directives(
        script_of(
            "topology=pcie_node",
            "cluster.gres=gpu:a100:4",
            "cluster.exclusive=false",
            "cluster.requeue=false",
            "cluster.cpus_per_rank=6",
            "cluster.time=1-12",
            "cluster.signal_s=0",
            "cluster.qos=high",
            "cluster.constraint=a100",
            "cluster.reservation=mine",
        )
    )
    assert {"gres=gpu:a100:4", "no-requeue", "cpus-per-task=48", "time=1-12", "qos=high"} <= set(found)
    assert {"constraint=a100", "reservation=mine"} <= set(found)
    assert not {name for name in found if name.startswith(("gpus-per-node", "exclusive", "mem", "signal"))}


def test_a_cluster_whose_slurm_knows_of_no_gpus_is_asked_for_none():
    found = directives(script_of("topology=nvlink_node", "cluster.gpus_per_node=none"))
    assert not {name for name in found if "gpu" in name or name.startswith("gres")}


@pytest.mark.parametrize("option", ["nodelist", "exclude"])
def test_nodes_are_named_as_slurm_writes_them(option):
    assert f"{option}=n[1-2,5]" in directives(
        script_of("topology=pcie_node", f"+cluster.sbatch.{option}=n[1-2,5]")
    )


def test_an_option_of_ones_own_wins():
    assert "mem=64G" in directives(script_of("topology=pcie_node", "+cluster.sbatch.mem=64G"))


def test_the_script_goes_on_with_its_run_where_it_was_submitted():
    script = script_of("topology=pcie_node", "cluster.setup=['module load cuda']")
    assert "\npython=/env/bin/python\n" in script
    assert "\narguments=(--resume /runs/one)\n" in script
    assert "\ncd -- '/my work'\n" in script
    assert "\nmodule load cuda\n" in script


@pytest.mark.parametrize(
    "line",
    [
        "export HF_TOKEN=$(cat ~/hf_token); umask 7",
        'export HF_TOKEN="$(<~/hf_token)" WANDB_API_KEY=`cat ~/wandb`',
        "export HF_TOKEN=$MY_TOKEN",
        "module load cuda/12.4; ulimit -n 65536; export NCCL_IB_PKEY=0x7fff",
    ],
)
def test_the_script_may_fetch_a_secret_and_holds_none(line):
    assert line in script_of("topology=pcie_node", f"cluster.setup=[{json.dumps(line)}]")


def test_template_and_scripts_are_shell(tmp_path):
    plan = plan_of("topology=pcie_node")
    compare = (folder("slurm") / "compare.sbatch").read_text()
    runs = [RunFolder("/runs/0"), RunFolder("/runs/1")]
    texts = [TEMPLATE, script_of("topology=pcie_node"), compare]
    texts.append(
        compare_script(compare, plan, runs, Path("/runs"), ["7", "8"], python="/p", root=Path("/lib"))
    )
    for text in texts:
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "dependency=afterany:7:8" in directives(texts[-1])
    assert "arguments=(/runs /runs/0 /runs/1)" in texts[-1]


def test_the_time_limit_grows_with_the_plan():
    short, long = (minutes(plan_of("topology=pcie_node", f"repeats={k}")) for k in (1, 4))
    assert short < long < 4 * short + 1


def test_the_time_limit_has_room_for_every_launch_of_the_search_for_the_largest_batch():
    asked, searched = (minutes(plan_of("topology=pcie_node", *more)) for more in ((), ("batch=max",)))
    launches = LAUNCHES_MAX + PROOFS_MAX
    assert searched - asked >= launches * START_S / 60


def test_the_time_limit_has_room_for_many_ranks_to_join():
    few, many = (
        plan_of(
            "topology=nvlink_node",
            "topology.ranks_per_host=8",
            f"topology.hosts={hosts}",
            f"world_sizes=[1,{8 * hosts}]",
        )
        for hosts in (2, 512)
    )
    joined_s = joining(many).high_s - joining(few).high_s
    assert joined_s > 60
    assert minutes(many) - minutes(few) == pytest.approx(joined_s * 1.25 / 60, abs=1)


def test_an_image_has_time_to_be_unpacked():
    asked, unpacked, told = (
        minutes(plan_of("topology=pcie_node", *more))
        for more in ((), ("cluster.container.image=/x.sif",), ("cluster.start_s=3600",))
    )
    assert unpacked - asked >= (START_IN_IMAGE_S - START_S) / 60
    assert told - asked >= (3600 - START_S) / 60


@pytest.mark.parametrize("run", ["/a b", "/a'b", '/a"b', "/a%b", "/a:b", "/a,b", "/a\\b", "/a$b", "/a\nb"])
def test_a_path_that_slurm_would_read_otherwise_is_refused(run):
    with pytest.raises(InputError, match="without spaces, quotes"):
        script_of("topology=pcie_node", run=run)


# Odd names: what bash and Slurm read back is what was meant

names = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0/"), min_size=1, max_size=40
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)
values = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\n\r"), min_size=1)
RECORD = """#!/bin/bash
printf '%s\\0' "$PWD" "$PYTHONPATH" "$@" >"$RECORD"
"""


def read_by_slurm(line: str) -> str:
    """A directive's word, unquoted as Slurm does it (src/sbatch/opt.c, _get_argument)."""
    found, quote, escaped = "", "", False
    for letter in line:
        if escaped:
            found, escaped = found + letter, False
        elif letter == "\\":
            escaped = True
        elif quote:
            found, quote = (found, "") if letter == quote else (found + letter, quote)
        elif letter in "\"'":
            quote = letter
        elif letter == "#" or letter.isspace():
            break
        else:
            found += letter
    return found


@given(interpreter=names, where=names, root=names)
@settings(max_examples=25)
def test_a_job_runs_what_was_meant_whatever_the_names(interpreter, where, root):
    with tempfile.TemporaryDirectory() as parent:
        here = Path(parent).resolve()
        for folder_of in ("bin", "at"):
            (here / folder_of).mkdir()
        at, python, record = here / "at" / where, here / "bin" / interpreter, here / "record"
        at.mkdir()
        python.write_text(RECORD)
        python.chmod(0o755)
        text = job_script(
            TEMPLATE,
            plan_of("topology=pcie_node"),
            RunFolder("/runs/one"),
            python=str(python),
            cwd=at,
            root=here / root,
        )
        (here / "job.sbatch").write_text(text, encoding="utf-8")
        checked = subprocess.run(["bash", "-n", here / "job.sbatch"], capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
        environment = {"PATH": os.environ["PATH"], "RECORD": str(record), "SLURM_JOB_ID": "1"}
        done = subprocess.run(
            ["bash", here / "job.sbatch"],
            cwd=here,
            env=environment | {"SLURM_JOB_NODELIST": "n1"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        cwd, path, *arguments = record.read_bytes().decode().split("\0")[:-1]
        assert (cwd, path) == (str(at), str(here / root))
        assert arguments == ["-m", "scaling.cli", "run", "--resume", "/runs/one"]
        assert {p.name for p in here.iterdir()} == {"at", "bin", "record", "job.sbatch"}


@given(value=values)
def test_a_directive_holds_its_value_whatever_it_is(value):
    plan = plan_of("topology=pcie_node")
    cluster = replace(plan.spec.cluster, sbatch={"comment": value})
    plan = replace(plan, spec=replace(plan.spec, cluster=cluster))
    text = job_script(TEMPLATE, plan, RunFolder("/r"), python="p", cwd=Path("/"), root=Path("/"))
    (line,) = [line for line in text.split("\n") if line.startswith("#SBATCH --comment=")]
    assert read_by_slurm(line.removeprefix("#SBATCH --comment=")) == value
    assert len(text.split("\n")) == len(script_of("topology=pcie_node").split("\n")) + 1


@pytest.mark.parametrize("value", ["a\n#SBATCH --uid=0", "a\nrm -rf ~", "a\rb"])
def test_a_value_of_several_lines_is_refused(value):
    plan = plan_of("topology=pcie_node")
    topology = replace(plan.spec.topology, name=value)
    plan = replace(plan, spec=replace(plan.spec, topology=topology))
    with pytest.raises(InputError, match="write it as one line"):
        job_script(TEMPLATE, plan, RunFolder("/r"), python="p", cwd=Path("/"), root=Path("/"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], None),
        (["cluster.time=5"], None),
        (["cluster.time=4"], "perhaps after 60 s, and measuring may take 75 s"),
        (["cluster.time=2", "cluster.signal_s=0"], None),
        (["cluster.time=6", "repeats=3"], "perhaps after 180 s, and measuring may take 225 s"),
    ],
)
def test_a_time_limit_is_held_against_the_budget(overrides, said):
    found = too_short(plan_of("topology=pcie_node", "measure.budget_s=60", *overrides))
    assert (said in found) if said else found is None


def test_a_time_limit_that_leaves_nothing_is_refused():
    with pytest.raises(InputError, match=r"time=3: the job is told to end up to 180 s before its limit"):
        too_short(plan_of("topology=pcie_node", "cluster.time=3"))
