"""Builds the device's library once, into the user's cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

CSRC = Path(__file__).parent / "csrc"
UNITS = ("core", "device", "operators", "simccl")
NAME = "simulated_device_C"


def missing() -> str | None:
    """What this machine lacks to build the device, as a sentence; None if it lacks nothing."""
    lacking = [name for name, found in _needed() if not found]
    if not lacking:
        return None
    return (
        f"the simulated accelerator needs {', '.join(lacking)} (docs/developing.md says how to install them)"
    )


def _needed() -> list[tuple[str, bool]]:
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    programs = [("g++", shutil.which("g++") is not None), ("ninja", shutil.which("ninja") is not None)]
    setuptools = importlib.util.find_spec("setuptools") is not None
    return [*programs, ("Python's headers", headers.is_file()), ("setuptools", setuptools)]


def folder() -> Path:
    """The folder of this build: its name says torch's and Python's version and what the sources are."""
    import torch

    sources = sorted(path for path in CSRC.rglob("*") if path.suffix in (".cpp", ".h"))
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return cache / "simulated-device" / f"torch-{torch.__version__}-{python}-{digest}"


def built() -> Path:
    """The library's file, built first where it is not in the cache: in a folder of its own, then put there at once."""
    path = folder() / f"{NAME}.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as workspace:
            _compile(Path(workspace)).replace(path)
    return path


def load() -> ModuleType:
    """The library, in this process."""
    import torch  # noqa: F401

    spec = importlib.util.spec_from_file_location(NAME, built())
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    return library


def _compile(into: Path) -> Path:
    """In a process of its own: what builds an extension also loads it, and it can be loaded once only."""
    code = f"from {__package__} import build; build.compile_into({str(into)!r})"
    tests = str(Path(__file__).parents[1])
    search = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": search}, check=True)
    return into / f"{NAME}.so"


def compile_into(workspace: str) -> None:
    from torch.utils import cpp_extension

    sources = [str(CSRC / "units" / f"{unit}.cpp") for unit in UNITS]
    cpp_extension.load(name=NAME, sources=sources, extra_cflags=["-O1", "-g0"], build_directory=workspace)
