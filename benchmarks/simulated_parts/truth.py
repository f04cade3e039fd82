"""What the simulation itself knows of a step: from its tasks, not from stamps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaling_simulator.trace import Task, of


class Seen(NamedTuple):
    """One step on one rank; ns of the simulation's own clock."""

    alone: tuple[int, ...]
    """By bucket: what its transfer takes with nothing beside it."""
    moved: tuple[tuple[int, int], ...]
    """By bucket: when data began to move, and when it was done."""
    compute_end: int
    """End of the last kernel that was launched before the last bucket."""

    @property
    def wait_ns(self) -> int:
        """From the end of backward's compute to the last bucket."""
        return max(0, max(end for _, end in self.moved) - self.compute_end)

    @property
    def transfer_ns(self) -> int:
        """The part of that in which data move."""
        covered, total = self.compute_end, 0
        for begin, end in sorted(self.moved):
            total += max(0, end - max(begin, covered))
            covered = max(covered, end)
        return total

    @property
    def busy_ns(self) -> int:
        """How long data move."""
        covered, total = 0, 0
        for begin, end in sorted(self.moved):
            total += max(0, end - max(begin, covered))
            covered = max(covered, end)
        return total


def of_steps(tasks: Sequence[Task], steps: int, buckets: int) -> list[Seen]:
    """The last `steps` steps of a block, each with so many buckets."""
    reduces = of(tasks, "all_reduce")[-steps * buckets :]
    kernels = sorted((t for t in tasks if "/" not in t.name), key=lambda t: t.queued_ns)
    seen = []
    for k in range(steps):
        of_step = reduces[k * buckets : (k + 1) * buckets]
        last = max(task.queued_ns for task in of_step)
        before = [task.end_ns for task in kernels if task.queued_ns <= last and task.stream == 0]
        seen.append(
            Seen(
                alone=tuple(task.alone_ns for task in of_step),
                moved=tuple((task.met_ns, task.end_ns) for task in of_step),
                compute_end=max(before),
            )
        )
    return seen
