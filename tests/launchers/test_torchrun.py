"""What a worker's environment is, and where NCCL is told to write.

Several NCCL ranks of one GPU: NCCL has to be new enough, and each launch has an MPS server of its own that ends.
"""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import planned
from support.processes import captured

from scaling import resources
from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.launchers import torchrun
from scaling.launchers.jobs import launcher_of
from scaling.launchers.launcher import LaunchRequest
from scaling.launchers.torchrun import reaped, require_nccl
from scaling.records.paths import RunFolder
from scaling.settings.plan import make_plan
from scaling.settings.topology import GPU, MULTI_RANK


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


@pytest.mark.parametrize("topology", ["local", "emulated_pcie"])
def test_an_import_path_that_is_given_stands_behind_this_package(topology, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    asked = (f"topology={topology}", "topology.device=cpu", "world_sizes=[1,2]")
    spec = planned(*asked, "+env.PYTHONPATH=/mine").spec
    started = command(spec, tmp_path)
    env = started.env if started.network is None else started.network["hosts"][1]["env"]
    assert env["PYTHONPATH"] == f"{resources.import_root()}:/mine:/inherited"


@pytest.mark.parametrize(
    ("ranks", "more", "said"),
    [(64, {}, None), (128, {}, "1"), (128, {"program": ("train.py",)}, None)],
    ids=["few", "many", "a script"],
)
def test_many_ranks_of_ours_connect_when_they_first_exchange_something(tmp_path, ranks, more, said):
    asked = ["topology=local", "topology.device=cpu", f"topology.ranks_per_host={ranks}"]
    plan = planned(*asked, f"world_sizes=[1,{ranks}]")
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
    assert made.argv[len(reaped(())) :][:2] == ((begin[0], "2") if bound else (begin[1], "gloo"))
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


WAIT_S = 20
CONTROL = """#!/bin/sh
# Notes what it is told, and in which pipe directory. A server runs where `up` lies there.
pipes=${CUDA_MPS_PIPE_DIRECTORY:-$DEFAULT_PIPES}
if [ "${1-}" = -d ]; then
    echo "$pipes start, GPUs ${CUDA_VISIBLE_DEVICES-all}" >>"$NOTES"
    [ -z "${BROKEN-}" ] || exit 1
    touch "$pipes/up"
else
    read -r word
    echo "$pipes $word" >>"$NOTES"
    [ -e "$pipes/up" ] || exit 1
    [ "$word" != quit ] || rm "$pipes/up"
fi
"""


@pytest.fixture
def mps(tmp_path):
    """mps(script, **variables): starts launch/mps.sh with a shell script; `notes()`: what MPS was told meanwhile."""
    programs, mine = tmp_path / "programs", tmp_path / "mine"
    programs.mkdir()
    mine.mkdir()
    control = programs / "nvidia-cuda-mps-control"
    control.write_text(CONTROL)
    control.chmod(0o755)
    notes = tmp_path / "notes"

    class Launch:
        folder = mine

        def __call__(self, script, **variables):
            env = {
                "PATH": f"{programs}:{os.environ['PATH']}",
                "NOTES": str(notes),
                "DEFAULT_PIPES": str(mine),
            }
            words = [str(resources.folder("launch") / "mps.sh"), "sh", "-c", script]
            return subprocess.Popen(words, env=env | variables, stdout=subprocess.PIPE, text=True)

        def notes(self, until=None):
            end = time.monotonic() + WAIT_S
            while True:
                lines = [
                    line.split(" ", 1) for line in (notes.read_text().splitlines() if notes.exists() else [])
                ]
                if until is None or [until] == [word for _, word in lines][-1:] or time.monotonic() > end:
                    return lines
                time.sleep(0.05)

        @staticmethod
        def gone(path):
            end = time.monotonic() + WAIT_S
            while Path(path).exists() and time.monotonic() < end:
                time.sleep(0.05)
            return not Path(path).exists()

    return Launch()


PRINT = 'echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_VISIBLE_DEVICES"'


def test_a_launch_has_a_server_of_its_own_which_ends_with_it(mps):
    said, _ = mps(PRINT, CUDA_VISIBLE_DEVICES="3,5").communicate(timeout=WAIT_S)
    folder, gpu = said.splitlines()[-1].split()
    assert folder.startswith("/tmp/scaling-mps-")
    assert gpu == "3"  # one GPU, which all ranks share
    told = mps.notes(until="quit")
    assert told[1:] == [[folder, "start, GPUs all"], [folder, "quit"]]
    assert mps.gone(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_also_after_a_crash_and_a_ctrl_c_and_the_next_has_another(mps, number):
    launch = mps(f"{PRINT}; exec sleep 60")
    assert "MPS server" in launch.stdout.readline()
    folder = launch.stdout.readline().split()[0]
    launch.send_signal(number)
    assert launch.wait(timeout=WAIT_S) == -number
    launch.stdout.close()
    assert mps.notes(until="quit")[-1] == [folder, "quit"]
    assert mps.gone(folder)
    said, _ = mps(PRINT).communicate(timeout=WAIT_S)
    assert said.splitlines()[-1].split()[0] != folder


def test_a_server_of_the_callers_is_used_and_left_as_it_is(mps):
    (mps.folder / "up").touch()
    said, _ = mps(PRINT).communicate(timeout=WAIT_S)
    assert said.splitlines() == ["one GPU shared by the MPS server that runs here already", " 0"]
    assert mps.notes() == [[str(mps.folder), "get_server_list"]]
    assert (mps.folder / "up").exists()


def test_where_a_server_cannot_start_the_launch_goes_on_and_says_what_that_costs(mps):
    launch = mps(PRINT, BROKEN="1")
    said, _ = launch.communicate(timeout=WAIT_S)
    assert launch.returncode == 0
    assert "could not be started; each collective takes milliseconds" in said
    folder = mps.notes()[-1][0]
    assert said.splitlines()[-1] == " 0"
    assert mps.gone(folder)


def test_and_where_there_is_no_mps(tmp_path):
    (tmp_path / "sh").symlink_to(shutil.which("sh"))
    script = str(resources.folder("launch") / "mps.sh")
    done = captured(["/bin/sh", script, "sh", "-c", "exit 3"], env={"PATH": str(tmp_path)})
    assert done.returncode == 3
    assert "each collective takes milliseconds" in done.stdout


def shared(**env):
    (request,) = requests(
        "plan", ["topology=local", "topology.device=cpu", "topology.ranks_per_host=2"]
    ).items
    topology = dataclasses.replace(request.spec.topology, name="local_shared_gpu", device=GPU, backend="nccl")
    return dataclasses.replace(request.spec, topology=topology, env={MULTI_RANK: "1", **env})


def test_the_command_of_a_launch_begins_with_it(tmp_path):
    folder = RunFolder(tmp_path)
    for spec, begins in ((shared(), "mps.sh"), (dataclasses.replace(shared(), env={}), "bind.sh")):
        plan = make_plan(spec, run_id="20260101-000000-abc", created="", version="")
        request = LaunchRequest(plan=plan, folder=folder, launch=folder.launch(0), world_sizes=(1, 2))
        argv = launcher_of(plan).command(request).argv
        assert argv[0 if begins == "mps.sh" else len(reaped(()))].endswith(begins)
        assert any(word.endswith("bind.sh") for word in argv)


def test_an_nccl_that_cannot_join_ranks_of_one_gpu_is_refused_with_what_to_install(nccl_library, monkeypatch):
    with pytest.raises(InputError) as told:
        require_nccl(shared(LD_PRELOAD=str(nccl_library(22809))))
    said = str(told.value)
    assert "need NCCL 2.30 or later, and 2.28.9 is loaded; pip install" in said
    assert "LD_PRELOAD=" in said
    assert "\n" not in said
    monkeypatch.setenv("LD_PRELOAD", str(nccl_library(23007)))
    require_nccl(shared())


def test_an_nccl_that_takes_too_long_to_load_refuses_nothing(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(torchrun, "MPS_LIMIT_S", 0.3)
    require_nccl(shared(PYTHONPATH=str(tmp_path)))


def test_the_wheel_that_is_named_is_that_of_torchs_cuda(tmp_path, nccl_library, monkeypatch):
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise RuntimeError('torch is not to be imported here')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for cuda in ("12", "13"):
        (torch / "version.py").write_text(f"cuda: Optional[str] = '{cuda}.8'\n")
        with pytest.raises(InputError, match=f"'nvidia-nccl-cu{cuda}>=2.30'"):
            require_nccl(shared(LD_PRELOAD=str(nccl_library(22809))))
