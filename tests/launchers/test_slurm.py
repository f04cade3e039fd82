"""What is started in an allocation, and what is read out of srun's words."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from scaling import resources
from scaling.config import requests
from scaling.errors import InputError
from scaling.launchers.slurm import Allocation, blamed, command, down, port, require_allocation
from scaling.plan import make_plan
from scaling.store import RunFolder

RECORDED = Path(__file__).with_name("slurm-22.05")
WHERE = Allocation(job="77", nodes=("a1", "a2", "a3"), address="10.0.0.1")


def plan_of(*overrides: str):
    spec = requests("plan", list(overrides)).items[0].spec
    return make_plan(spec, run_id="20260101-000000-abc", created="", version="")


def argv_of(plan, tmp_path, sizes):
    folder = RunFolder(tmp_path)
    return command(plan, folder, folder.launch(3), sizes, WHERE)


def test_one_task_a_node_and_no_gpu_hidden(tmp_path):
    made = argv_of(plan_of("topology=nvlink_node", "topology.hosts=3"), tmp_path, [1, 8, 16])
    text = " ".join(made.argv)
    assert "--ntasks-per-node=1" in text
    assert "--nodes=2 --ntasks=2" in text  # 16 ranks fill two of the three nodes
    assert "--nodelist=a1,a2 " in text
    assert "slurm_node.sh 8,8 nccl --nnodes=2 --master-addr=10.0.0.1" in text
    assert "gpus-per-task" not in text
    assert "gpu-bind" not in text
    assert text.endswith(f"-m scaling.worker {tmp_path} 3 1,8,16")
    assert made.env["SCALING_NUMA_BINDING"] == "node"


def test_ranks_that_are_spread_take_every_node(tmp_path):
    spread = ("topology=nvlink_node", "topology.hosts=3", "topology.placement=spread")
    made = argv_of(plan_of(*spread, "world_sizes=[2,4]"), tmp_path, [2, 4])
    text = " ".join(made.argv)
    assert "--nodes=3 --ntasks=3" in text
    assert "slurm_node.sh 2,1,1 nccl --nnodes=3" in text
    assert made.ranks == (0, 3, 1, 2)  # torchrun's second process is on the first node, and is our last


def test_a_node_takes_its_own_share(tmp_path):
    """The script a node runs, with what it ends in replaced by echo."""
    script = tmp_path / "slurm_node.sh"
    script.write_text((resources.folder("launch") / "slurm_node.sh").read_text())
    (tmp_path / "torchrun.sh").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "torchrun.sh").chmod(0o755)
    for node, share in enumerate((2, 1, 1)):
        done = subprocess.run(
            ["sh", str(script), "2,1,1", "gloo", "--nnodes=3"],
            env={"SLURM_NODEID": str(node), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"gloo --node-rank={node} --nproc-per-node={share} --nnodes=3\n"


def test_what_is_asked_for_the_nodes_is_in_the_environment(tmp_path):
    plan = plan_of(
        "topology=nvlink_node",
        "cluster.interface=ib0",
        "+cluster.env.NCCL_IB_HCA=mlx5",
        "+cluster.env.NCCL_DEBUG=INFO",
        "+env.NCCL_DEBUG=WARN",
        "cluster.numa_binding=none",
    )
    env = argv_of(plan, tmp_path, [8]).env
    assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "ib0"
    assert env["NCCL_IB_HCA"] == "mlx5"
    assert env["NCCL_DEBUG"] == "WARN"  # the run's own wins over the cluster's
    assert env["NCCL_DEBUG_FILE"] == str(tmp_path / "launches/3/nccl-%h-%p.txt")
    assert "SCALING_NUMA_BINDING" not in env


def test_pyxis(tmp_path):
    plan = plan_of(
        "topology=nvlink_node",
        'cluster.container.image="nvcr.io#nvidia/pytorch:25.01-py3"',  # Hydra reads # and : otherwise
        "cluster.container.mounts=[/data:/data:ro]",
    )
    made = argv_of(plan, tmp_path, [8])
    text = " ".join(made.argv)
    assert "--container-image=nvcr.io#nvidia/pytorch:25.01-py3" in text
    (mounts,) = (a for a in made.argv if a.startswith("--container-mounts="))
    assert f"{tmp_path}:{tmp_path}" in mounts
    assert mounts.endswith(",/data:/data:ro")
    assert "/opt/scaling-harness/launch/slurm_node.sh 8 nccl" in text
    assert (
        made.env["PYTHONPATH"] == "/opt/scaling-harness"
    )  # not this site-packages: its torch is not the image's
    assert made.env["SCALING_PYTHON"] == "python3"


def test_apptainer(tmp_path):
    plan = plan_of(
        "topology=nvlink_node",
        "cluster.container.image=/images/torch.sif",
        "cluster.container.runtime=apptainer",
    )
    text = " ".join(argv_of(plan, tmp_path, [8]).argv)
    assert "apptainer exec --nv --bind=" in text
    assert "/images/torch.sif /opt/scaling-harness/launch/slurm_node.sh 8 nccl" in text


def test_launches_and_jobs_differ_in_their_port():
    assert len({port(str(job), launch) for job in (100, 101) for launch in range(3)}) == 6
    assert all(20000 <= port(str(job), 0) < 32000 for job in range(1, 100000, 997))


def test_nodes_that_are_down():
    assert down((RECORDED / "sinfo.txt").read_text()) == {"nvlink2"}
    states = "a alloc\nb alloc*\nc down*\nd drng\ne drain\nf fail\ng comp\nh unk*\na alloc\n"
    assert down(states) == {"b", "c", "f", "h"}


KILLED = """\
srun: cluster configuration lacks support for cpu binding
srun: error: pcie2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=6.0
srun: error: pcie1: task 0: Exited with exit code 1
"""
NODE_FAILURE = """\
srun: error: Node failure on pcie2
srun: error: pcie2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=8.0
srun: error: pcie1: task 0: Killed
"""
FAILED = """\
srun: error: pcie1: task 0: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=10.1
srun: error: pcie2: task 1: Terminated
"""
OTHER_NODE = (
    "slurmstepd: error: *** STEP 3.0 ON n-7 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE ***\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (KILLED, "torchrun on node pcie2: Killed"),
        (NODE_FAILURE, "node pcie2 failed"),
        (OTHER_NODE, "node n-7 failed"),
        (FAILED, None),  # a rank's own error says more
        ("", None),
    ],
)
def test_who_ended_a_launch(text, said):
    assert blamed(text) == said


def test_outside_of_an_allocation_it_says_what_to_do(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InputError, match="scaling submit"):
        require_allocation(plan_of("topology=nvlink_node"))


def test_an_allocation_with_too_few_gpus(monkeypatch):
    plan = plan_of("topology=nvlink_node")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a1")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    with pytest.raises(InputError, match="has 4 GPUs on a node"):
        require_allocation(plan)
    gloo = dataclasses.replace(plan.spec.topology, backend="gloo")
    require_allocation(dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, topology=gloo)))


def test_ranks_a_node_come_from_the_allocation(monkeypatch):
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert plan_of("topology=nvlink_node", "topology.ranks_per_host=null").ranks == 4
