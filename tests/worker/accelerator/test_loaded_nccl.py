"""The version of NCCL is the loaded library's, not the one that torch was built with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import scaling
from scaling.worker.accelerator.cuda import nccl_numbers

ROOT = Path(scaling.__file__).parents[1]
NEWER, OLDER = 23007, 22809
"""NCCL_VERSION_CODE of 2.30.7 and 2.28.9."""
ASK = """
import sys
from types import SimpleNamespace
import torch
from scaling.settings.topology import Topology
from scaling.worker.accelerator import cuda, devices
torch.cuda.device_count = lambda: 1
torch.cuda.nccl.version = lambda: (2, 28, 9)
devices.TorchAccelerator = lambda _type, index: index
for path in sys.argv[1:]:
    import ctypes
    ctypes.CDLL(path)
topology = Topology(name="local", kind="local", ranks_per_host=2, device="cuda", backend="nccl")
spec = SimpleNamespace(topology=topology, launcher="local", env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
print(cuda.nccl_text())
try:
    print("device", devices.open_device(spec, rank=1, local_rank=1))
except RuntimeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Makes a library that says which NCCL it is."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("a C compiler is needed to make a library that answers as NCCL does")

    def make(code: int) -> Path:
        folder = tmp_path_factory.mktemp("nccl")
        source = folder / "nccl.c"
        source.write_text(f"int ncclGetVersion(int *v) {{ *v = {code}; return 0; }}\n")
        built = folder / "libnccl.so.2"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source], check=True)
        return built

    return make


def answers(*loaded: Path, preload: Path | None = None) -> list[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"LD_PRELOAD": str(preload)} if preload else {})
    done = subprocess.run(
        [sys.executable, "-c", ASK, *map(str, loaded)], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_preloaded_nccl_is_the_one_that_runs(library):
    assert answers(preload=library(NEWER)) == ["2.30.7, torch was built with 2.28.9", "device 0"]


def test_nccl_that_torch_loaded_is_asked_by_its_file(library):
    said, gate = answers(library(OLDER))
    assert said == "2.28.9"
    assert "before 2.30, and this is 2.28.9" in gate


def test_a_preloaded_nccl_comes_before_the_one_of_torch(library):
    assert answers(library(OLDER), preload=library(NEWER))[0] == "2.30.7, torch was built with 2.28.9"


def test_without_a_library_of_its_own_the_build_says_which_nccl_runs():
    said, gate = answers()
    assert said == "2.28.9"
    assert "this is 2.28.9" in gate


def test_version_codes_before_and_since_2_9():
    assert [nccl_numbers(code) for code in (2708, 20903, NEWER)] == [(2, 7, 8), (2, 9, 3), (2, 30, 7)]
