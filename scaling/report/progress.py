"""Progress on stderr while a launch runs: a bar with the time left, or one line where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from scaling.plan import Plan
from scaling.units import format_duration

Report = Callable[[dict[str, Any]], None]


@contextmanager
def watching(plan: Plan, *, rounds: bool = True) -> Iterator[Report]:
    """Yields what takes a worker's progress record. `rounds`: whether it measures for as long as `measure=` says."""
    spec = plan.spec
    title = f"{spec.model.name} on {spec.topology.name}"
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        budget = f": start-up, then about {format_duration(spec.measure.budget_s * spec.repeats)}"
        console.print(f"measuring {title}{budget if rounds else ''}", highlight=False, soft_wrap=True)
        yield lambda record: _say(console, record)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{title}: starting workers", total=1.0, left="")

        def report(record: dict[str, Any]) -> None:
            _say(progress.console, record)
            if "stage" not in record:
                return
            left, elapsed = record.get("left_s"), float(record.get("elapsed_s", 0.0))
            share = 0.0 if left is None or elapsed + left <= 0 else elapsed / (elapsed + left)
            progress.update(
                task,
                description=f"{title}: {record['stage']}",
                completed=share,
                left="" if left is None else f"{format_duration(left)} left",
            )

        yield report


def _say(console: Console, record: dict[str, Any]) -> None:
    """What is worth a line of its own."""
    if "said" in record:
        console.print(f"scaling: {record['said']}", highlight=False, markup=False, soft_wrap=True)
