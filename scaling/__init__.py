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
    "Analysis": "scaling.analysis.results",
    "Comparison": "scaling.analysis.results",
    "InputError": "scaling.errors",
    "Measured": "scaling.analysis.results",
    "Probe": "scaling.worker.probe.probe",
    "Run": "scaling.cli.loaded",
    "ScalingError": "scaling.errors",
    "Workload": "scaling.worker.data.workload",
    "compare": "scaling.cli.api",
    "load": "scaling.cli.loaded",
    "predict": "scaling.cli.api",
}
"""A public name, and the module that defines it."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'scaling' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
