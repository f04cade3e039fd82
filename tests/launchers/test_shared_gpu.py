"""Several NCCL ranks of one GPU: NCCL has to be new enough, and each launch has an MPS server of its own that ends."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaling import resources
from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.launchers.choose import launcher_of
from scaling.launchers.devices import require_nccl
from scaling.launchers.launcher import LaunchRequest
from scaling.records.paths import RunFolder
from scaling.settings.plan import make_plan
from scaling.settings.topology import GPU, MULTI_RANK

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
    done = subprocess.run(
        ["/bin/sh", script, "sh", "-c", "exit 3"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
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
        assert argv[0].endswith(begins)
        assert any(word.endswith("bind.sh") for word in argv)


@pytest.fixture
def nccl(tmp_path):
    """A library that says which NCCL it is."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("a C compiler is needed to make a library that answers as NCCL does")

    def make(code):
        source, built = tmp_path / "nccl.c", tmp_path / f"libnccl-{code}.so"
        source.write_text(f"int ncclGetVersion(int *v) {{ *v = {code}; return 0; }}\n")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source], check=True)
        return str(built)

    return make


def test_an_nccl_that_cannot_join_ranks_of_one_gpu_is_refused_with_what_to_install(nccl, monkeypatch):
    with pytest.raises(InputError) as told:
        require_nccl(shared(LD_PRELOAD=nccl(22809)))
    said = str(told.value)
    assert "need NCCL 2.30 or later, and 2.28.9 is loaded; pip install" in said
    assert "LD_PRELOAD=" in said
    assert "\n" not in said
    monkeypatch.setenv("LD_PRELOAD", nccl(23007))
    require_nccl(shared())


def test_the_wheel_that_is_named_is_that_of_torchs_cuda(tmp_path, nccl, monkeypatch):
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise RuntimeError('torch is not to be imported here')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for cuda in ("12", "13"):
        (torch / "version.py").write_text(f"cuda: Optional[str] = '{cuda}.8'\n")
        with pytest.raises(InputError, match=f"'nvidia-nccl-cu{cuda}>=2.30'"):
            require_nccl(shared(LD_PRELOAD=nccl(22809)))
