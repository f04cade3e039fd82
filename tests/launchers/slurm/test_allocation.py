"""What is started in an allocation, and what is read out of srun's words."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path

import pytest
from support.commands import planned
from support.processes import captured

from scaling import resources
from scaling.errors import InputError, ScalingError
from scaling.launchers.launcher import LaunchRequest
from scaling.launchers.slurm import queue
from scaling.launchers.slurm.launcher import Slurm, blamed, port, srun
from scaling.launchers.slurm.queue import JobAllocation, down, hostnames
from scaling.records.paths import RunFolder
from scaling.settings.timeouts import start_limit_s

RECORDED = Path(__file__).with_name("slurm-22.05")
WHERE = JobAllocation(job="77", nodes=("a1", "a2", "a3"), address="10.0.0.1")


def argv_of(plan, tmp_path, sizes):
    folder = RunFolder(tmp_path)
    request = LaunchRequest(plan=plan, folder=folder, launch=folder.launch(3), world_sizes=tuple(sizes))
    return srun(request, WHERE)


def test_one_task_a_node_and_no_gpu_hidden(tmp_path):
    plan = planned("topology=nvlink_node", "topology.hosts=3")
    made = argv_of(plan, tmp_path, [1, 8, 16])
    text = " ".join(made.argv)
    assert "--ntasks-per-node=1" in text
    assert "--nodes=2 --ntasks=2" in text  # 16 ranks fill two of the three nodes
    assert "--nodelist=a1,a2 " in text
    assert "slurm_node.sh 8,8 nccl --nnodes=2 --master-addr=10.0.0.1" in text
    assert "gpus-per-task" not in text
    assert "gpu-bind" not in text
    assert text.endswith(f"-m scaling.worker {tmp_path} 3 1,8,16")
    assert made.env["SCALING_NUMA_BINDING"] == "node"
    assert made.start_s == start_limit_s(plan)


def test_ranks_that_are_spread_take_every_node(tmp_path):
    spread = ("topology=nvlink_node", "topology.hosts=3", "topology.placement=spread")
    made = argv_of(planned(*spread, "world_sizes=[2,4]"), tmp_path, [2, 4])
    text = " ".join(made.argv)
    assert "--nodes=3 --ntasks=3" in text
    assert "slurm_node.sh 2,1,1 nccl --nnodes=3" in text
    assert made.ranks == (0, 3, 1, 2)  # torchrun's second process is on the first node, and is our last


def test_a_node_takes_its_own_share(tmp_path):
    """The script a node runs, with what it ends in replaced by echo."""
    for name in ("slurm_node.sh", "bind.sh"):
        shutil.copy(resources.folder("launch") / name, tmp_path)
    script = tmp_path / "slurm_node.sh"
    (tmp_path / "torchrun.sh").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "torchrun.sh").chmod(0o755)
    for node, share in enumerate((2, 1, 1)):
        done = captured(
            ["sh", str(script), "2,1,1", "gloo", "--nnodes=3"],
            env={"SLURM_NODEID": str(node), "PATH": os.environ["PATH"]},
            check=True,
        )
        assert done.stdout == f"gloo --node-rank={node} --nproc-per-node={share} --nnodes=3\n"


FAKE_BINDING = {
    "torch/cuda/__init__.py": "import os\ndef device_count():\n    return int(os.environ['FAKE_GPUS'])\n",
    "torch/numa/binding.py": "AffinityMode, NumaOptions = str, dict\n",
    "torch/distributed/elastic/multiprocessing/subprocess_handler.py": """
import os, subprocess
NEAR_CORES = int(os.environ.get("FAKE_NEAR_CORES", os.environ["FAKE_GPUS"]))
class SubprocessHandler:
    def __init__(self, *, entrypoint, args, env, stdout, stderr, local_rank_id, numa_options):
        if local_rank_id >= NEAR_CORES:
            raise RuntimeError(f"no cores near GPU {local_rank_id} for {numa_options['affinity_mode']}\\nand more")
        self.proc = subprocess.Popen(["numactl", entrypoint, *args])
""",
}
"""A stand-in for torch 2.13 with `FAKE_GPUS` GPUs, with the function that binds ranks to cores.

The first `FAKE_NEAR_CORES` of the GPUs have cores near them, by default all.
"""


@pytest.fixture
def bound(tmp_path):
    """bound(python path, numactl, **environment): what the script of a node with two ranks starts, and says before."""

    def run(python_path: Path, numactl: str | None, **environment: str) -> tuple[list[str], str]:
        for name in ("slurm_node.sh", "bind.sh", "numa_binding.py"):
            shutil.copy(resources.folder("launch") / name, tmp_path)
        tools = tmp_path / "tools"
        tools.mkdir()
        # Nothing else is on the PATH: this machine may have a numactl.
        for name in ("dirname", "cut", "true"):
            (tools / name).symlink_to(shutil.which(name))
        told = 'echo "$SCALING_NUMA_BOUND"; echo "$@"'
        own = {tmp_path / "torchrun.sh": told, tools / "numactl": numactl}
        for path, words in own.items():
            if words is not None:
                path.write_text(f"#!/bin/sh\n{words}\n")
                path.chmod(0o755)
        done = captured(
            ["/bin/sh", str(tmp_path / "slurm_node.sh"), "2", "nccl", "--nnodes=1"],
            env={
                "SLURM_NODEID": "0",
                "PATH": str(tools),
                "PYTHONPATH": str(python_path),
                "SCALING_PYTHON": sys.executable,
                "SCALING_NUMA_BINDING": "node",
                **environment,
            },
            check=True,
        )
        assert done.stderr == ""
        *said, started = done.stdout.splitlines()
        return said, started

    return run


@pytest.fixture
def fake_torch(tmp_path):
    for name, text in FAKE_BINDING.items():
        path = tmp_path / "fake" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        for package in Path(name).parents[:-1]:  # without these files the installed torch would be taken
            (tmp_path / "fake" / package / "__init__.py").touch()
    return tmp_path / "fake"


UNBOUND = "nccl --node-rank=0 --nproc-per-node=2 --nnodes=1"


def test_ranks_that_torchrun_can_bind_are_bound(bound, fake_torch):
    said, started = bound(fake_torch, 'exec "$@"', FAKE_GPUS="2")
    assert said == ["bound (node)"]
    assert started == f"nccl --numa-binding=node {UNBOUND.removeprefix('nccl ')}"


@pytest.mark.parametrize(
    ("gpus", "numactl", "why"),
    [
        ("1", 'exec "$@"', "1 GPU for 2 ranks"),
        ("2", "exit 3", "local rank 0: numactl ended with 3"),
        ("2", None, "numactl is missing"),
        ("none", 'exec "$@"', "the check failed"),
    ],
)
def test_where_one_cannot_be_bound_none_is_and_the_launch_goes_on(bound, fake_torch, gpus, numactl, why):
    said, started = bound(fake_torch, numactl, FAKE_GPUS=gpus)
    assert said == [f"ranks are not bound to cores: {why}", f"not bound: {why}"]
    assert started == UNBOUND


def test_a_rank_whose_gpu_has_no_cores_near_it_is_named(bound, fake_torch):
    said, started = bound(fake_torch, 'exec "$@"', FAKE_GPUS="2", FAKE_NEAR_CORES="1")
    assert said[-1] == "not bound: local rank 1: RuntimeError: no cores near GPU 1 for node"
    assert started == UNBOUND


def test_a_torch_without_binding_does_not_bind(bound, tmp_path):
    (tmp_path / "old/torch").mkdir(parents=True)
    (tmp_path / "old/torch/__init__.py").touch()
    said, started = bound(tmp_path / "old", 'exec "$@"')
    why = "torch's numa binding is missing"
    assert said == [f"ranks are not bound to cores: {why}", f"not bound: {why}"]
    assert started == UNBOUND


@pytest.mark.slow
def test_torch_itself_counts_the_gpus_that_are_not_there(bound, tmp_path):
    pytest.importorskip("torch.numa.binding")
    said, started = bound(tmp_path, 'exec "$@"', CUDA_VISIBLE_DEVICES="")
    assert said == ["ranks are not bound to cores: 0 GPUs for 2 ranks", "not bound: 0 GPUs for 2 ranks"]
    assert started == UNBOUND


def test_what_is_asked_for_the_nodes_is_in_the_environment(tmp_path):
    plan = planned(
        "topology=nvlink_node",
        "cluster.interface=ib0",
        "+cluster.env.NCCL_IB_HCA=mlx5",
        "+cluster.env.NCCL_DEBUG=INFO",
        "+env.NCCL_DEBUG=WARN",
        "+cluster.env.PYTHONPATH=/mine",
        "cluster.numa_binding=none",
    )
    env = argv_of(plan, tmp_path, [8]).env
    assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "ib0"
    assert env["NCCL_IB_HCA"] == "mlx5"
    assert env["NCCL_DEBUG"] == "WARN"  # the run's own wins over the cluster's
    assert env["PYTHONPATH"].split(":")[:2] == [str(resources.import_root()), "/mine"]
    assert env["NCCL_DEBUG_FILE"] == str(tmp_path / "launches/3/nccl-%h-%p.txt")
    assert "SCALING_NUMA_BINDING" not in env


def test_pyxis(tmp_path):
    plan = planned(
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
    # not this site-packages: its torch is not the image's
    assert made.env["PYTHONPATH"] == "/opt/scaling-harness"
    assert made.env["SCALING_PYTHON"] == "python3"


def test_options_of_srun_by_key(tmp_path):
    plan = planned("topology=nvlink_node", "+cluster.srun.mpi=pmix", "+cluster.srun.network=single_node_vni")
    words = argv_of(plan, tmp_path, [8]).argv
    assert {"--mpi=pmix", "--network=single_node_vni", "--cpu-bind=none"} <= set(words)
    assert "--mpi=none" not in words


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_apptainer(tmp_path, runtime):
    plan = planned(
        "topology=nvlink_node",
        "cluster.container.image=/images/torch.sif",
        f"cluster.container.runtime={runtime}",
    )
    text = " ".join(argv_of(plan, tmp_path, [8]).argv)
    assert f"{runtime} exec --nv --bind=" in text
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
        ("srun: error: n1: task 0: Out Of Memory\n", None),  # of the step as a whole: torchrun knows whose
        ("", None),
    ],
)
def test_who_ended_a_launch(text, said):
    assert blamed(text) == said


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """answers(name, *lines): one of Slurm's commands that runs one shell line after the other, a call each."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(queue.time, "sleep", lambda _: None)
    (tmp_path / "bin").mkdir()

    def stand_in(name, *lines):
        path, count = tmp_path / "bin" / name, tmp_path / f"{name}.calls"
        cases = "\n".join(f"{k}) {line};;" for k, line in enumerate(lines))
        path.write_text(
            f"#!/bin/sh\nk=$(cat {count} 2>/dev/null || echo 0)\necho $((k+1)) >{count}\ncase $k in\n{cases}\nesac\n"
        )
        path.chmod(0o755)
        return lambda: int(count.read_text())

    return stand_in


BUSY = "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1"


def test_a_controller_that_is_busy_is_asked_again(answers):
    calls = answers("scontrol", BUSY, BUSY, "echo a1 a2")
    assert hostnames("a[1-2]") == ["a1", "a2"]
    assert calls() == 3


def test_one_that_stays_away_ends_in_its_words_and_one_that_refuses_at_once(answers):
    calls = answers("scontrol", *[BUSY] * 20)
    with pytest.raises(ScalingError, match="scontrol: slurm_load_jobs error: Socket timed out"):
        hostnames("a[1-2]")
    assert calls() == 1 + len(queue.AGAIN_S)
    calls = answers("squeue", "echo 'slurm_load_jobs error: Invalid user id' >&2; exit 1")
    with pytest.raises(ScalingError, match="Invalid user id"):
        queue.answer("squeue")
    assert calls() == 1


def test_outside_of_an_allocation_it_says_what_to_do(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InputError, match="scaling submit"):
        Slurm().require(planned("topology=nvlink_node"))


def test_an_allocation_with_too_few_gpus(monkeypatch):
    plan = planned("topology=nvlink_node")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a1")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    with pytest.raises(InputError, match="has 4 GPUs on a node"):
        Slurm().require(plan)
    gloo = dataclasses.replace(plan.spec.topology, backend="gloo")
    Slurm().require(dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, topology=gloo)))


def test_ranks_a_node_come_from_the_allocation(monkeypatch):
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert planned("topology=nvlink_node", "topology.ranks_per_host=null").ranks == 4
