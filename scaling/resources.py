"""Find conf/, launch/ and slurm/ in a wheel, an editable install or a plain checkout."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from scaling.errors import InputError

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The `conf`, `launch` or `slurm` folder of this installation: the wheel's copy, else the checkout's."""
    for root in (_PACKAGE / "_shipped", _PACKAGE.parent):
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"no {name}/ beside the package {_PACKAGE}")


def import_root() -> Path:
    """The folder that holds this package."""
    return _PACKAGE.parent


def import_path() -> str:
    """A worker's PYTHONPATH: this package's folder, then the caller's entries, such as the folder of a model."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(dict.fromkeys([str(import_root()), *filter(None, inherited.split(os.pathsep))]))


def require_simulator() -> None:
    """InputError where the package of the simulated accelerator, which is one of its own, is not installed."""
    if importlib.util.find_spec("scaling_simulator") is None:
        raise InputError(
            "the simulated accelerator is not installed: pip install 'scaling-harness[simulate]'"
        )
