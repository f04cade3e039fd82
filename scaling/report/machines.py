"""What a run ran on, as a table with a column for each kind of machine."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.results.machine import MachineGroup
from scaling.report.model import Table
from scaling.report.text import NONE, count, ranges
from scaling.spec.plan import Plan
from scaling.units import format_bytes

NAMES = (
    ("device_name", "device"),
    ("cpu", "CPU"),
    ("cores", "cores"),
    ("threads", "threads a rank"),
    ("driver", "driver"),
    ("cuda", "CUDA"),
    ("cudnn", "cuDNN"),
    ("nccl", "NCCL"),
    ("torch", "torch"),
    ("python", "Python"),
    ("kernel", "kernel"),
)
HOSTS_SHOWN = 4


def machine_table(found: Sequence[MachineGroup], plan: Plan) -> Table | None:
    """Every fact that some machine reported, and the version of the code; None without machines."""
    if not found:
        return None
    columns = (("", ""), *((_ranks(machine.ranks), "") for machine in found))
    rows = [("hosts", *(_hosts(machine) for machine in found))]
    for name, label in NAMES:
        known = [getattr(machine, name) for machine in found]
        if any(value is not None for value in known):
            rows.append((label, *(NONE if value is None else str(value) for value in known)))
    if any(machine.device_memory_bytes for machine in found):
        sizes = (
            NONE if m.device_memory_bytes is None else format_bytes(m.device_memory_bytes) for m in found
        )
        rows.append(("device memory", *sizes))
    if any(machine.environment for machine in found):
        rows.append(("environment", *(_variables(machine) for machine in found)))
    rows.append(("scaling-harness", *(plan.version for _ in found)))
    if plan.commit:
        rows.append(("commit", *(plan.commit for _ in found)))
    return Table(columns=columns, rows=tuple(rows), label="Machine and environment", words=True)


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 0`, `ranks 0-7`, `ranks 0-3, 8`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {ranges(ranks)}"


def _hosts(machine: MachineGroup) -> str:
    shown = ", ".join(machine.hosts[:HOSTS_SHOWN])
    more = len(machine.hosts) - HOSTS_SHOWN
    return f"{shown} and {count(more, 'other')}" if more > 0 else shown


def _variables(machine: MachineGroup) -> str:
    return ", ".join(f"{name}={value}" for name, value in machine.environment) or NONE
