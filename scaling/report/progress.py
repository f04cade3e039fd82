"""Progress on stderr while a launch runs: a bar with the time left, or one line where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from scaling.plain import message, one_line
from scaling.report.time_left import TimeLeft, said
from scaling.spec.plan import Plan
from scaling.units import format_duration

Report = Callable[[dict[str, Any]], None]


@contextmanager
def watching(plan: Plan, *, rounds: bool = True) -> Iterator[Report]:
    """Yield a function that shows a worker's progress record. `rounds`: whether `measure=` sets how long it takes."""
    spec = plan.spec
    title = f"{spec.model.name} on {spec.topology.name}"
    console = Console(stderr=True)
    clock = TimeLeft(plan if rounds else None)
    _print(console, f"measuring {title}{said(plan) if rounds else ''}")
    if not sys.stderr.isatty():
        yield lambda record: _say(console, record, clock)
        return
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415  slow to import

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{title}: starting workers", total=1.0, left="")

        def report(record: dict[str, Any]) -> None:
            _say(progress.console, record, None)
            if "stage" not in record:
                return
            progress.update(
                task,
                description=one_line(f"{title}: {record['stage']}"),
                completed=clock.share(record),
                left=_words(record, clock),
            )

        yield report


def _words(record: dict[str, Any], clock: TimeLeft) -> str:
    """The time left; where nothing is finished for a while, for how long, what the ranks do, and what follows."""
    if "silent_s" not in record:
        return clock.words(record)
    state = {True: "the ranks work", False: "the ranks are idle", None: "nothing is seen of the ranks"}
    waited, given_up = format_duration(record["silent_s"]), format_duration(record["patience_s"])
    return f"nothing finished for {waited}, {state[record['moved']]}; it is ended after {given_up} without progress"


def _say(console: Console, record: dict[str, Any], clock: TimeLeft | None) -> None:
    """Print a message that a worker sent; where there is no bar (`clock`), now and then how far the run is."""
    if "said" in record:
        _print(console, f"scaling: {record['said']}")
    elif clock is not None and "stage" in record and clock.due():
        _print(console, f"scaling: {record['stage']}: {_words(record, clock)}")


def _print(console: Console, line: str) -> None:
    console.print(message(line), highlight=False, markup=False, soft_wrap=True)
