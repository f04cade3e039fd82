"""Progress on stderr while a launch runs: a bar with the time left, or one line where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from scaling.plain import message, one_line
from scaling.settings.plan import Plan
from scaling.units import format_duration

Report = Callable[[dict[str, Any]], None]

LINE_S = 60.0
"""Where there is no bar, a line says how far the run is, once in this time at most."""


@contextmanager
def watching(plan: Plan, *, rounds: bool = True) -> Iterator[Report]:
    """Yield a function that shows a worker's progress record. `rounds`: whether `measure=` sets how long it takes."""
    spec = plan.spec
    title = f"{spec.model.name} on {spec.topology.name}"
    console = Console(stderr=True)
    clock = TimeLeft(plan if rounds else None)
    _print(console, f"measuring {title}{takes(plan) if rounds else ''}")
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
    console.print(message(line), highlight=False, markup=False, emoji=False, soft_wrap=True)


def takes(plan: Plan) -> str:
    """How long a run takes, as it is said at its start."""
    promise, measure = plan.promise, plan.spec.measure
    if promise is None:
        longest_s = measure.longest_s * plan.spec.repeats
        return f": start-up, then at most about {format_duration(longest_s)}; no step was timed"
    parts = [f"tryout {format_duration(promise.tried_s)}"] if promise.tried_s >= 1 else []
    parts += [f"search {format_duration(promise.search_s)}"] if promise.search_s else []
    parts += [
        f"start-up {format_duration(promise.start_s * promise.launches)}",
        f"then about {format_duration((promise.warmup_s + promise.rounds_s) * promise.launches)}",
        f"report {format_duration(promise.end_s)}",
    ]
    return f": {', '.join(parts)}; {format_duration(promise.seconds)} in all"


class TimeLeft:
    """How long a run still takes: as its launch says, else by what was said at the start."""

    def __init__(self, plan: Plan | None) -> None:
        self._promise = plan.promise if plan is not None else None
        self._begin_s = self._told_s = time.monotonic()

    def seconds(self, record: dict[str, Any]) -> float | None:
        """Seconds left, analysis included; None where nothing is known."""
        end_s = self._promise.end_s if self._promise is not None else 0.0
        if record.get("left_s") is not None:
            return float(record["left_s"]) + end_s
        if self._promise is None:
            return None
        return max(0.0, self._promise.seconds - self._promise.tried_s - self._gone_s())

    def share(self, record: dict[str, Any]) -> float:
        """What of the run is done, 0 to 1."""
        left_s, gone_s = self.seconds(record), self._gone_s()
        return 0.0 if left_s is None or gone_s + left_s <= 0 else gone_s / (gone_s + left_s)

    def words(self, record: dict[str, Any]) -> str:
        """The time left, or why it is not known."""
        left_s = self.seconds(record)
        if left_s is None:
            return "time left is known after the first round"
        if left_s < 1:
            return "longer than it was said at the start"
        return f"{format_duration(left_s)} left"

    def due(self) -> bool:
        """Whether a line is due where there is no bar."""
        now_s = time.monotonic()
        if now_s - self._told_s < LINE_S:
            return False
        self._told_s = now_s
        return True

    def _gone_s(self) -> float:
        return time.monotonic() - self._begin_s
