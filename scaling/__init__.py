"""Measure how a DDP training scales, what eats the rest, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaling.worker.own.probe import Probe
    from scaling.worker.workload import Workload

__version__ = "0.1.0"

__all__ = ["Probe", "Workload", "__version__"]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for."""
    if name == "Workload":
        from scaling.worker.workload import Workload  # noqa: PLC0415

        return Workload
    if name == "Probe":
        from scaling.worker.own.probe import Probe  # noqa: PLC0415

        return Probe
    raise AttributeError(f"module 'scaling' has no attribute {name!r}")
