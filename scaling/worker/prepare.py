"""Making a trial ready: wrap, see that it fits into memory everywhere, warm up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaling.plan import Trial
from scaling.records import PLAIN, PROBE
from scaling.spec import Measure
from scaling.worker.arms import Arms
from scaling.worker.clock import Clock
from scaling.worker.control import Control
from scaling.worker.devices import Device
from scaling.worker.exchange import Exchange
from scaling.worker.groups import Group
from scaling.worker.memory import is_out_of_memory
from scaling.worker.pace import fabric_sizes
from scaling.worker.progress import COMPILE_S
from scaling.worker.step import Loop

WARMUP_CHUNK = 3
WARMUP_SETTLED = 0.10
"""Warm-up ends when a chunk of steps is no longer faster than the chunk before by more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """One trial on one rank, ready to be measured."""

    arms: Arms
    warmup_steps: int
    step_ns: int
    """About what one plain step takes, in the slowest sub-group."""
    fed_ns: int
    """What a fetch takes whose batch is there; -1 where batches are made up."""
    sweep: list[int]
    """Sizes of the fabric arm, bytes; none at world size 1."""


def fits(arms: Arms) -> bool:
    """Whether one local step fits into this rank's memory: nothing is reduced, so no peer is left waiting."""
    try:
        arms.bare.local()
    except Exception as error:
        if is_out_of_memory(error):
            return False
        raise
    return True


def warm_up(
    trial: Trial,
    arms: Arms,
    *,
    group: Group,
    participants: int,
    device: Device,
    control: Control,
    exchange: Exchange,
    measure: Measure,
    rank: int,
    word: Callable[[str, float | None], None],
) -> Ready:
    """Each loop a few steps (DDP rebuilds its buckets in the second), then plain ones until they settle.

    `participants`: ranks of all sub-groups, which do the same: rank 0 decides for all of them. `word` is told what
    comes next and, where it may take minutes, about how long (s).
    """
    n, clock, lead = trial.world_size, device.clock, rank == 0
    for feed in arms.feeds():
        feed.prepare("warm-up", n)
        feed.resume()
    loops = arms.loops()
    for index, loop in enumerate(loops if arms.compiles else ()):
        # Minutes, and not the same on every rank: nobody is to wait in a collective for it.
        word(f"compiling {index + 1} of {len(loops)}", COMPILE_S)
        loop.local()
        control.meet(f"compiled/{n}/{index}", participants)
    for index, loop in enumerate(loops):
        word(f"loop {index + 1} of {len(loops)}", None)
        _chunk(loop, clock)
    if arms.detailed is not None:
        with arms.taking(PROBE, detailed=True) as take:
            assert take is not None
            take(arms.detailed.forward_end_ns)  # what the hook has gathered is not wanted
            with clock.window(arms.stamps(PROBE, detailed=True)):
                arms.detailed.plain()
            take(arms.detailed.forward_end_ns)  # one step's, as every step's will be
    steps, before, settled = WARMUP_CHUNK, float("inf"), False
    while not settled and steps < measure.warmup_max:
        word(f"{steps} steps", None)
        took = _chunk(arms.plain, clock)
        steps += WARMUP_CHUNK
        settled = control.agree(f"warm/{n}/{steps}", took > before * (1 - WARMUP_SETTLED), lead=lead)
        before = took
    word("messages", None)
    for feed in arms.feeds():
        feed.pause("warm-up")
    fed_ns = arms.feed(PLAIN).fed_ns(clock, arms.load)
    sweep: list[int] = []
    if arms.detailed is not None:
        exchange.reserve(max(measure.fabric_bytes_max, *arms.wire()))
        sweep = fabric_sizes(
            measure.fabric_bytes_max,
            measure.budget_s,
            lambda size: exchange.once(group, size),
            lambda key, value: control.agree(f"fabric/{n}/{key}", value, lead=lead),
        )
    step_ns = int(before) // WARMUP_CHUNK
    if participants > n:  # a block takes as long as its slowest sub-group
        step_ns = control.judge(f"step/{n}", step_ns, rank, participants, max)
    return Ready(arms=arms, warmup_steps=steps, step_ns=step_ns, fed_ns=fed_ns, sweep=sweep)


def _chunk(loop: Loop, clock: Clock) -> int:
    """How long a few plain steps take, ns."""
    with clock.window(2 * WARMUP_CHUNK):
        stamps = [loop.plain() for _ in range(WARMUP_CHUNK)]
    begin, end = clock.resolve([stamps[0][0], stamps[-1][1]])
    return end - begin
