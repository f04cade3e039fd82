"""Builds the device's library once, into the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

CSRC = Path(__file__).parent / "csrc"
UNITS = ("core", "device", "operators", "simccl")
NAME = "simulated_device_C"
OLDEST_TORCH = (2, 13)
"""torch 2.11 ends such runs with SIGSEGV."""
LIMIT_S = 900
"""A build takes about a minute of processor time. It may take this long before it is given up."""


class BuildError(RuntimeError):
    """The library cannot be built here; the message is one line that says why."""


def missing() -> str | None:
    """What this machine lacks to build the device, as a sentence; None if it lacks nothing."""
    torch, oldest = importlib.metadata.version("torch"), ".".join(map(str, OLDEST_TORCH))
    if tuple(map(int, torch.split(".")[:2])) < OLDEST_TORCH:
        return f"the simulated accelerator needs torch {oldest} or newer; this is torch {torch}"
    lacking = [name for name, present in _needed() if not present]
    if not lacking:
        return None
    return (
        f"the simulated accelerator needs {', '.join(lacking)} "
        "(apt-get install g++ python3-dev; pip install 'scaling-harness[simulate]' has ninja and setuptools)"
    )


def _needed() -> list[tuple[str, bool]]:
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    programs = [(name, shutil.which(name, path=_search_path()) is not None) for name in ("g++", "ninja")]
    setuptools = importlib.util.find_spec("setuptools") is not None
    return [*programs, ("Python's headers", headers.is_file()), ("setuptools", setuptools)]


def _search_path() -> str:
    """PATH, and the interpreter's own folder: an environment that is not activated has ninja there."""
    return os.pathsep.join(filter(None, (os.environ.get("PATH"), str(Path(sys.executable).parent))))


def folder() -> Path:
    """The folder of this build: its name says torch's and Python's version and what the sources are.

    torch is not imported for it, which takes seconds where the library is built already.
    """
    sources = sorted(path for path in CSRC.rglob("*") if path.suffix in {".cpp", ".h"})
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return (
        cache
        / "scaling-harness"
        / "simulated"
        / f"torch-{importlib.metadata.version('torch')}-{python}-{digest}"
    )


def built() -> Path:
    """The library's file. Where it is not in the cache yet, one process builds it and others wait for that one.

    Raises:
        BuildError: something is missing on this machine, or the compiler failed.

    """
    path = folder() / f"{NAME}.so"
    if path.is_file():
        return path
    lacking = missing()
    if lacking is not None:
        raise BuildError(lacking)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent / "lock"):
        if not path.is_file():
            with tempfile.TemporaryDirectory(dir=path.parent) as workspace:
                _compile(Path(workspace)).replace(path)
    return path


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock among processes; the kernel frees it when its holder ends, however that happens."""
    with lock.open("w") as file:
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until:
                    raise BuildError(f"another process has held {lock} for {LIMIT_S} s") from None
                time.sleep(0.2)
        yield


def library() -> ModuleType:
    """Load the library into this process, built first where it has to be."""
    import torch  # noqa: F401, PLC0415

    spec = importlib.util.spec_from_file_location(NAME, built())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(into: Path) -> Path:
    """In a process of its own: what builds an extension also loads it, and it can be loaded once only."""
    code = f"from {__name__} import compile_into; compile_into({str(into)!r})"
    roots = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots)), "PATH": _search_path()}
    log = into / "log.txt"
    with log.open("w") as output:
        try:
            done = subprocess.run(
                [sys.executable, "-c", code],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"the simulated accelerator was not built within {LIMIT_S} s") from None
    if done.returncode != 0:
        printed = log.read_text(errors="replace").splitlines()
        errors = [line for line in printed if "error" in line.lower()] or printed or ["nothing was printed"]
        raise BuildError(f"the simulated accelerator could not be compiled: {errors[0].strip()}")
    return into / f"{NAME}.so"


def compile_into(workspace: str) -> None:
    """Compile and link the library in a folder, with torch's own builder."""
    from torch.utils import cpp_extension  # noqa: PLC0415  (needs setuptools)

    sources = [str(CSRC / "units" / f"{unit}.cpp") for unit in UNITS]
    cpp_extension.load(name=NAME, sources=sources, extra_cflags=["-O1", "-g0"], build_directory=workspace)
