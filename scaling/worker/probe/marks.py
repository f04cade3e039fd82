"""What the marks of a step in a user's loop say: how long each phase took, and how long the rank waited in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from scaling.records.format import StepRow
from scaling.worker.parallel.strategy import BUFFERS, Wait

FORWARD, BACKWARD, COMPUTE_END, SYNC_END, OPTIMIZER, OPTIMIZER_END, FORWARD_END, NEXT_MODEL, NAMED = range(9)
"""The k-th phase that the loop names begins with the mark NAMED + 2 k, an even number, and ends with the next one."""

Marks = list[tuple[int, int]]
"""(what begins or ends, clock token), in order."""
Window = tuple[int, int]


def behind(marks: Sequence[Window]) -> list[Window]:
    """End of backward's compute and of backward, of each backward of a step."""
    return [(computed, whole) for (kind, computed), (_, whole) in pairwise(marks) if kind == COMPUTE_END]


def pieces(begin: int, marks: Sequence[Window], end: int) -> list[tuple[int, int, str]]:
    """A step's time from begin to end, as (begin, end, phase) in order; `host`: none of the four phases.

    The time from the begin to the first forward is `input`. So is the time between a backward and the next forward,
    where the next micro-batch is fetched, unless an optimizer stepped in between and the model is the same. The time
    between a backward and the optimizer is `optimizer`: gradients are unscaled and clipped there. An optimizer that is
    given a closure runs forward and backward inside of its step; it is `optimizer` from then on. Around the steps of
    optimizers within a backward, backward goes on. What lies between the marks of a named phase is `host`.
    """
    spent: list[tuple[int, int, str]] = []
    phase, since, stepped, steps, before, around = "input", begin, False, 0, "", "host"
    for kind, at in marks:
        name = phase
        if kind in (FORWARD, NEXT_MODEL):
            if steps:  # a closure's: of its first forward, what came before the step goes on
                name, before = before or "optimizer", ""
            elif phase == "host" and (kind == NEXT_MODEL or not stepped):
                name = "input"
            following, stepped = "forward", False
        elif kind == FORWARD_END:
            following = _BETWEEN
        elif kind == BACKWARD:
            gap = phase == "host" and not stepped
            name, following = "input" if phase == _BETWEEN else "backward" if gap else phase, "backward"
        elif kind == SYNC_END:
            following = "host"
        elif kind == OPTIMIZER:
            steps += 1
            if steps > 1:  # inside of another one, which wraps it
                continue
            before = "input" if phase == "input" else ""
            around = "backward" if phase == "backward" else "host"
            name = "optimizer" if phase == "host" and not stepped else phase
            following = "optimizer"
        elif kind == OPTIMIZER_END:
            steps = max(0, steps - 1)
            if steps:
                continue
            name = "optimizer" if phase == "host" else phase
            following, stepped = around, True
        elif kind >= NAMED:
            name, following = ("host" if kind % 2 else phase), phase
        else:
            continue
        spent.append((since, at, "forward" if name == _BETWEEN else name))
        phase, since = following, at
    return [*spent, (since, end, "host")]


def unseen_forwards(marks: Sequence[tuple[int, int]]) -> int:
    """How many backwards began before a forward was seen, since the step's begin or an optimizer's step.

    A model that was called before that step, and whose backward had not begun, was seen, too.
    """
    unseen, seen, ahead = 0, False, 0
    for kind, _ in marks:
        if kind in (FORWARD, NEXT_MODEL):
            seen, ahead = True, ahead + 1 if kind == NEXT_MODEL else max(ahead, 1)
        elif kind == BACKWARD:
            unseen, seen, ahead = unseen + (not seen), True, max(0, ahead - 1)
        elif kind == OPTIMIZER_END:
            seen = ahead > 0
    return unseen


def _named_apart(marks: Sequence[Window], end: int) -> tuple[Marks, list[tuple[int, int, int]]]:
    """A step's marks for `pieces`, and its named phases as (begin, end, place in Phases.names), in order.

    A phase with a backward, or with the forward that one follows, is part of the four phases, so its own marks are left
    out; of another phase those within are. One that was not left ends with the step.
    """
    kinds = [kind for kind, _ in marks]
    named, left_out = [], set[int]()
    for first, last in pairwise([*(k for k, kind in enumerate(kinds) if kind >= NAMED), len(marks)]):
        if kinds[first] % 2:
            continue
        inside, then = kinds[first + 1 : last], next((kind for kind in kinds[last:] if kind < NAMED), None)
        forward = then == BACKWARD and inside[-1:] in ([FORWARD], [NEXT_MODEL], [FORWARD_END])
        left_out |= {first, last} if forward or BACKWARD in inside else set(range(first + 1, last))
        left = marks[last][1] if last < len(marks) else end
        named.append((marks[first][1], left, (kinds[first] - NAMED) // 2))
    return [mark for k, mark in enumerate(marks) if k not in left_out], named


def named_times(marks: Sequence[Window], end: int, waits: Iterable[Window]) -> dict[int, tuple[int, int]]:
    """How long each named phase of a step lasts, and what of that is waits, ns; by its place in Phases.names."""
    times: dict[int, tuple[int, int]] = {}
    waited = _apart(waits)
    for begin, last, place in _named_apart(marks, end)[1]:
        ns, wait_ns = times.get(place, (0, 0))
        times[place] = (ns + last - begin, wait_ns + _overlap(begin, last, waited))
    return times


def _overlap(begin: int, end: int, windows: Iterable[Window]) -> int:
    """How much of begin to end lies in windows that do not overlap, ns."""
    return sum(max(0, min(end, z) - max(begin, a)) for a, z in windows)


_BETWEEN = "between forward and backward"


def _apart(windows: Iterable[Window], others: Sequence[Window] = ()) -> list[Window]:
    """The time that the windows cover together, in order, without that of the others, which do not overlap."""
    covered: list[Window] = []
    for begin, end in sorted(windows):
        if covered and begin <= covered[-1][1]:
            covered[-1] = (covered[-1][0], max(end, covered[-1][1]))
        elif end > begin:
            covered.append((begin, end))
    for first, last in others:
        covered = [
            part
            for begin, end in covered
            for part in ((begin, min(end, first)), (max(begin, last), end))
            if part[1] > part[0]
        ]
    return covered


def step_row(begin: int, marks: Sequence[Window], end: int, waits: Sequence[Wait] = ()) -> StepRow | None:
    """The row of a step, from its marks as host times, ns; None where no backward was seen.

    `waits`: windows in which the rank waited for communication. They count once where they overlap, and in the phase
    in which they lie. Where the end of backward's compute is marked, the rank waits from there to the end of backward.
    """
    parts = pieces(begin, _named_apart(marks, end)[0], end)
    ends = [at for kind, at in marks if kind == SYNC_END]
    if not ends:
        return None
    last_update = max((at for kind, at in marks if kind == OPTIMIZER_END and at < ends[-1]), default=begin)
    after = behind(marks)
    apart = [window for window in after if window[1] > last_update]  # others are of another model's update
    forwards = [(first, last) for first, last, phase in parts if phase == "forward"]
    buffers = [
        (wait.begin, wait.end)
        for wait in waits
        if wait.phase == BUFFERS and any(first <= wait.begin <= last for first, last in forwards)
    ]
    rest = _apart([*((wait.begin, wait.end) for wait in waits), *after], [*apart, *buffers])
    spent = dict.fromkeys(("input", "forward", "backward", "optimizer", "host"), 0)
    waited = spent.copy()
    for first, last, phase in parts:
        spent[phase] += last - first
        waited[phase] += _overlap(first, last, rest)
    compute_end = next((computed for computed, whole in apart if whole == ends[-1]), ends[-1])
    return StepRow(
        begin_ns=begin,
        end_ns=end,
        input_ns=spent["input"],
        forward_ns=spent["forward"],
        backward_ns=spent["backward"],
        optimizer_ns=spent["optimizer"],
        compute_end_ns=compute_end,
        sync_end_ns=ends[-1],
        earlier_wait_ns=sum(whole - computed for computed, whole in apart if whole != ends[-1]),
        buffer_wait_ns=sum(last - first for first, last in buffers),
        buffer_begin_ns=buffers[-1][0] if buffers else 0,
        buffer_end_ns=buffers[-1][1] if buffers else 0,
        forward_wait_ns=waited["forward"],
        backward_wait_ns=waited["backward"],
        input_wait_ns=waited["input"],
        optimizer_wait_ns=waited["optimizer"],
        host_wait_ns=waited["host"],
    )
