"""Measure how distributed training scales, where the lost efficiency goes, and how certain the answer is.

The public names are listed in `__all__`; docs/api.md shows them at work. Each is imported when it is first used, so
that `import scaling` loads neither torch nor polars.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaling.analysis.results import Analysis, Comparison, Measured
    from scaling.cli.api import compare, predict
    from scaling.cli.loaded import Run, load
    from scaling.errors import InputError, ScalingError
    from scaling.worker.data.workload import Workload
    from scaling.worker.probe.probe import Probe

from scaling.version import __version__

__all__ = [
    "Analysis",
    "Comparison",
    "InputError",
    "Measured",
    "Probe",
    "Run",
    "ScalingError",
    "Workload",
    "__version__",
    "compare",
    "load",
    "predict",
]

_HOMES = {
    "scaling.analysis.results": ("Analysis", "Comparison", "Measured"),
    "scaling.cli.api": ("compare", "predict"),
    "scaling.cli.loaded": ("Run", "load"),
    "scaling.errors": ("InputError", "ScalingError"),
    "scaling.worker.data.workload": ("Workload",),
    "scaling.worker.probe.probe": ("Probe",),
}
"""A module, and the public names that it defines."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'scaling' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
