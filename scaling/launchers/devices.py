"""What a launch's devices need before its ranks start.

Several NCCL ranks of one GPU: whether the NCCL that they will load can join them, and how their launch starts. The
simulated accelerator: it is built before, since peers of a rank that builds it would wait for it in a collective.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scaling import resources
from scaling.errors import InputError
from scaling.plain import tell
from scaling.reading import system_text
from scaling.settings.plan import Plan
from scaling.settings.run import Spec
from scaling.settings.topology import GPU, MULTI_RANK, MULTI_RANK_NCCL

MPS = "nvidia-cuda-mps-control"
MPS_LIMIT_S = 20
ASK = """
import ctypes, sys
for path in (None, *sys.argv[1:]):
    try:
        code = ctypes.c_int(0)
        if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) == 0:
            print(code.value)
            break
    except (OSError, AttributeError):
        pass
"""
"""Asks a preloaded NCCL for its version, else the one whose file is given, without an import of torch."""


def shares_gpu(spec: Spec) -> bool:
    """Whether NCCL was told that ranks of this machine may share a GPU."""
    topology = spec.topology
    on_one = topology.device == GPU and topology.backend == "nccl" and spec.launcher == "local"
    return on_one and spec.env.get(MULTI_RANK) == "1"


def require_nccl(spec: Spec) -> None:
    """InputError where the NCCL that ranks will load is too old to join ranks of one GPU. Says where MPS is missing.

    Where torch has NCCL inside, nobody can tell before it is imported, and the ranks say so.
    """
    code = _nccl_code(spec)
    if code is not None and code < MULTI_RANK_NCCL[0] * 10_000 + MULTI_RANK_NCCL[1] * 100:
        least = ".".join(map(str, MULTI_RANK_NCCL))
        loaded = f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
        wheel = f"nvidia-nccl-cu{_cuda_of_torch()}"
        raise InputError(
            f"topology={spec.topology.name}: ranks of one GPU need NCCL {least} or later, and {loaded} is loaded; "
            f"pip install --no-deps --target nccl '{wheel}>={least}', and here: "
            "export LD_PRELOAD=$PWD/nccl/nvidia/nccl/lib/libnccl.so.2"
        )
    if shutil.which(MPS) is None:
        _say(mps_line())


_say = functools.cache(tell)
"""Once: a plan is checked before its run is made, and again where it begins."""


def mps_line() -> str:
    """What MPS does for a launch here, in words."""
    if shutil.which(MPS) is None:
        return f"one GPU shared without MPS ({MPS} is not on the PATH): ranks take turns, collectives take milliseconds"
    return "one GPU shared by MPS, which each launch starts and ends, unless a server of yours runs"


def beside_mps(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command of a launch, started by `launch/mps.sh`."""
    return (str(resources.folder("launch") / "mps.sh"), *argv)


def _nccl_code(spec: Spec) -> int | None:
    """NCCL_VERSION_CODE of what ranks will load, from 2.9 on; None where it cannot be told here."""
    torch = _torch_folder()
    library = torch.parent / "nvidia/nccl/lib/libnccl.so.2" if torch else None
    done = subprocess.run(
        [sys.executable, "-c", ASK, *([str(library)] if library and library.is_file() else [])],
        env={**os.environ, **spec.env},
        capture_output=True,
        text=True,
        timeout=MPS_LIMIT_S,
        check=False,
    )
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else None


def _torch_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")  # finds it, and imports nothing
    return Path(spec.origin).parent if spec and spec.origin else None


def _cuda_of_torch() -> str:
    """The major version of the CUDA that torch was built with; 13 where its files do not say."""
    folder = _torch_folder()
    text = system_text(folder / "version.py") if folder else None
    named = re.search(r"^cuda\b[^=]*= '(\d+)", text or "", re.MULTILINE)
    return named[1] if named else "13"


BUILD_LIMIT_S = 960
"""A build takes about a minute of processor time; it has a limit of its own below this one."""


def build_device(plan: Plan) -> None:
    """Build what a plan on simulated accelerators needs and the cache lacks. InputError where it cannot be built."""
    if plan.spec.topology.is_simulated:
        _build()


@functools.cache
def _build() -> None:
    """Once: a plan is checked, its step timed and its run begun by one process."""
    resources.require_simulator()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scaling_simulator"],
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path()},
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"topology.device=sim: it was not built within {BUILD_LIMIT_S} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise InputError(f"topology.device=sim: {lines[-1] if lines else f'failed with {done.returncode}'}")
