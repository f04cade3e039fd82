"""What a worker's environment is, and where NCCL is told to write."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from scaling import resources
from scaling.config.compose import requests
from scaling.launchers.choose import launcher_of
from scaling.launchers.launcher import LaunchRequest
from scaling.records.paths import RunFolder
from scaling.settings.plan import make_plan


@pytest.fixture
def environment(tmp_path):
    """environment(profile, **set): what the wrapper hands on to the interpreter."""
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\nenv\n")
    interpreter.chmod(0o755)

    def run(profile, **given):
        script = [str(resources.folder("launch") / "torchrun.sh"), profile]
        env = {"PATH": os.environ["PATH"], "SCALING_PYTHON": str(interpreter), **given}
        out = subprocess.run(script, env=env, capture_output=True, text=True, check=True).stdout
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    return run


def test_nccl_says_how_it_begins_and_nothing_of_single_collectives(environment):
    found = environment("nccl")
    assert (found["NCCL_DEBUG"], found["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT")
    assert found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert not [name for name in environment("gloo") if name.startswith("NCCL_")]


def test_what_is_set_already_wins(environment):
    assert environment("nccl", NCCL_DEBUG="WARN")["NCCL_DEBUG"] == "WARN"


def command(spec, path):
    """Of a launch of one and two ranks."""
    plan = make_plan(spec, run_id="20260101-000000-abc", created="", version="")
    folder = RunFolder(path)
    request = LaunchRequest(plan=plan, folder=folder, launch=folder.launch(0), world_sizes=(1, 2))
    return launcher_of(plan).command(request)


@pytest.mark.parametrize(
    ("ranks", "more", "said"),
    [(64, {}, None), (128, {}, "1"), (128, {"program": ("train.py",)}, None)],
    ids=["few", "many", "a script"],
)
def test_many_ranks_of_ours_connect_when_they_first_exchange_something(tmp_path, ranks, more, said):
    asked = ["topology=local", "topology.device=cpu", f"topology.ranks_per_host={ranks}"]
    (one,) = requests("plan", [*asked, f"world_sizes=[1,{ranks}]"]).items
    plan = make_plan(one.spec, run_id="20260101-000000-abc", created="", version="")
    folder = RunFolder(tmp_path)
    request = LaunchRequest(plan=plan, folder=folder, launch=folder.launch(0), world_sizes=(1, ranks), **more)
    assert launcher_of(plan).command(request).env.get("TORCH_GLOO_LAZY_INIT") == said


@pytest.mark.parametrize(("backend", "named"), [("nccl", True), ("gloo", False)])
def test_nccl_writes_into_the_launch_s_folder(tmp_path, backend, named):
    (asked,) = requests("plan", ["topology=local", "topology.device=cpu", "topology.ranks_per_host=2"]).items
    topology = dataclasses.replace(asked.spec.topology, backend=backend)
    made = command(dataclasses.replace(asked.spec, topology=topology), tmp_path)
    assert made.env.get("NCCL_DEBUG_FILE") == (str(tmp_path / "launches/0/nccl-%h-%p.txt") if named else None)


def test_its_logs_are_found_and_else_the_ranks_own(tmp_path):
    launch = RunFolder(tmp_path).launch(0)
    launch.path.mkdir(parents=True)
    launch.log(0).write_text("")
    assert launch.nccl_logs() == [launch.log(0)]
    launch.nccl_log("node0", "41").write_text("")
    assert launch.nccl_logs() == [launch.nccl_log("node0", "41")]


@pytest.mark.parametrize(
    ("device", "mode", "bound"), [("cuda", "node", True), ("cuda", "none", False), ("cpu", "node", False)]
)
def test_ranks_on_this_machine_are_bound_to_cores_as_on_slurm(tmp_path, device, mode, bound):
    local = (
        "topology=local",
        "topology.device=cpu",
        "topology.ranks_per_host=2",
        f"cluster.numa_binding={mode}",
    )
    (asked,) = requests("plan", local).items
    topology = dataclasses.replace(asked.spec.topology, device=device)
    made = command(dataclasses.replace(asked.spec, topology=topology), tmp_path)
    begin = [str(resources.folder("launch") / name) for name in ("bind.sh", "torchrun.sh")]
    assert made.argv[:2] == ((begin[0], "2") if bound else (begin[1], "gloo"))
    assert made.env.get("SCALING_NUMA_BINDING") == ("node" if bound else None)


@pytest.mark.skipif(
    subprocess.run(["unshare", "-Urn", "true"], check=False).returncode != 0, reason="no namespaces"
)
def test_a_machine_whose_loopback_is_down_is_refused_before_a_launch():
    code = (
        "from scaling.cli.main import main; raise SystemExit(main(['run', 'topology=local', 'topology.device=cpu', "
        "'topology.ranks_per_host=2', 'world_sizes=[2]', 'model=synthetic', 'measure=quick', 'run_dir=run']))"
    )
    with_lo_down = ["unshare", "-Urn", sys.executable, "-c", code]
    done = subprocess.run(with_lo_down, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "127.0.0.1, which does not answer (Network is unreachable)" in done.stderr
