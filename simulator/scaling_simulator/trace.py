"""What ran on the device: tasks of all streams with their stamps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from scaling_simulator.device import load


class Task(NamedTuple):
    """One kernel, copy or collective; times in ns. `met_ns`: when a collective's last rank came; else 0."""

    device: int
    stream: int
    name: str
    queued_ns: int
    start_ns: int
    end_ns: int
    met_ns: int
    alone_ns: int
    """What a transfer takes with nothing beside it."""
    bytes: int

    @property
    def kind(self) -> str:
        """The operator or the kind of collective: "aten::mm", "all_reduce"."""
        return self.name.partition("/")[0]

    @property
    def transfer_ns(self) -> int:
        """A collective's time once its last rank was there."""
        return self.end_ns - self.met_ns

    @property
    def wait_ns(self) -> int:
        """A collective's wait for its last rank."""
        return self.met_ns - self.start_ns


@contextmanager
def recorded() -> Iterator[list[Task]]:
    """Collect the tasks of a block; the list is filled at its end, when the current device is done."""
    library = load()
    tasks: list[Task] = []
    torch.accelerator.synchronize()
    library.take_records()
    library.recording(True)
    try:
        yield tasks
        torch.accelerator.synchronize()
    finally:
        library.recording(False)
        tasks.extend(Task(*record) for record in library.take_records())


def of(tasks: Iterable[Task], *kinds: str) -> list[Task]:
    """The tasks of these kinds ("all_reduce", "aten::mm"), in the order of their starts."""
    return sorted(
        (task for task in tasks if task.kind in kinds), key=lambda task: (task.start_ns, task.end_ns)
    )


def busy_ns(tasks: Iterable[Task]) -> int:
    """The sum of the tasks' times; those that overlap count more than once."""
    return sum(task.end_ns - task.start_ns for task in tasks)
