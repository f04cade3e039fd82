"""Prepare a trial: check that it fits into memory on every rank, and warm up."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from scaling.records.format import CollectiveRow
from scaling.settings.plan import SWEEP, WHOLE, Content, Trial
from scaling.settings.schedule import PLAIN, PROBE, largest
from scaling.worker.accelerator.clock import Clock
from scaling.worker.accelerator.memory import is_out_of_memory
from scaling.worker.measure.arms import Arms
from scaling.worker.measure.exchange import Exchange
from scaling.worker.measure.pace import fabric_sizes
from scaling.worker.measure.step import Loop
from scaling.worker.session.progress import COMPILE_S
from scaling.worker.session.session import LaunchSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A trial on one rank that is ready to be measured."""

    arms: Arms
    warmup_steps: int
    step_ns: int
    """About what a plain step takes in the slowest sub-group."""
    alone_ns: int
    """About what a step without DDP takes, all ranks at once."""
    fed_ns: int
    """Duration of a fetch whose batch is ready; -1 for synthetic batches."""
    sweep: list[int]
    """Sizes of the fabric arm, bytes; empty at world size 1."""
    sent: list[CollectiveRow]
    """One message of each of these sizes."""


def fits(arms: Arms) -> bool:
    """Whether whole steps fit into this rank's memory, with the optimizer's state. No peer waits for it."""
    try:
        arms.tried()
    except Exception as error:
        if is_out_of_memory(error):
            return False
        raise
    return True


WARMUP_CHUNK = 3
"""Steps that are timed together, if there is time for them."""
WARMUP_SETTLED = 0.10
"""Warm-up ends when a chunk of steps is not faster than the one before by more than this fraction."""


def warm_up(
    trial: Trial,
    arms: Arms,
    *,
    session: LaunchSession,
    participants: int,
    exchange: Exchange,
    content: Content = WHOLE,
    limit_s: float = math.inf,
    key: str = "",
) -> Ready:
    """Run each use of the module for a few steps, then plain steps until they settle.

    `participants`: ranks of all sub-groups, which do the same; rank 0 decides for all of them. `limit_s`: time for it,
    compiling apart. Where steps are long, each use takes fewer of them. `key` sets it apart from others of the launch.
    """
    key = key or str(trial.world_size)
    n, clock = trial.world_size, session.device.clock
    control, measure, group = session.control, session.spec.measure, session.groups[trial.world_size]
    for feed in arms.feeds():
        feed.prepare("warm-up", n)
        feed.resume()
    uses = arms.warmed()
    for index, (arm, _, half) in enumerate(uses if arms.compiles else ()):
        # Compiling takes minutes, and not equally long on every rank, so no rank waits for it in a collective.
        session.say(f"compiling {index + 1} of {len(uses)}", COMPILE_S)
        arms.compile(arm, half=half)
        control.meet(f"compiled/{key}/{index}", participants)
    begin, chunk, alone_ns = time.monotonic(), WARMUP_CHUNK, 0
    for index, (arm, detailed, half) in enumerate(uses):
        session.say(f"loop {index + 1} of {len(uses)}")
        with arms.open(arm, detailed=detailed, half=half, timed=False) as opened:
            if index == 0:
                alone_ns = _chunk(opened.loop, clock, 1)
                chunk = control.agree(f"chunk/{key}", _chunk_of(alone_ns, len(uses), limit_s))
            took = _chunk(opened.loop, clock, chunk - 1 if index == 0 else chunk)
            alone_ns = min(alone_ns, took // (chunk - 1)) if index == 0 and chunk > 1 else alone_ns
            if arm == PROBE:  # look at the messages of one step alone
                with opened.detail.taking() as take, clock.window(arms.stamps(opened)):
                    opened.loop.plain()
                    take(opened.loop.forward_end_ns)
                arms.messages(opened.detail.wire)
            if arm == PLAIN:
                steps, before = _settled(opened.loop, key, session, chunk, took, begin + limit_s)
    session.say("messages")
    for feed in arms.feeds():
        feed.pause("warm-up")
    fed_ns = arms.feed(PLAIN).fed_ns(clock, arms.load)
    sweep: list[int] = []
    sent: list[CollectiveRow] = []

    def send(size: int) -> CollectiveRow:
        sent.append(exchange.once(group, size))
        return sent[-1]

    if n > 1 and not arms.varies and content.has(SWEEP):
        backend = session.spec.topology.backend
        room = exchange.room(largest(measure, backend), least=measure.fabric_bytes_max)
        room = control.judge(f"fabric/{key}/room", room, session.rank, participants, min)
        with exchange.reserved(room):
            sweep = fabric_sizes(
                room,
                measure,
                backend,
                send,
                lambda what, value: control.agree(f"fabric/{key}/{what}", value),
            )
    step_ns = before // chunk
    if participants > n:  # a block takes as long as its slowest sub-group
        step_ns = control.judge(f"step/{key}", step_ns, session.rank, participants, max)
    return Ready(
        arms=arms,
        warmup_steps=steps,
        step_ns=step_ns,
        alone_ns=alone_ns,
        fed_ns=fed_ns,
        sweep=sweep,
        sent=sent,
    )


def _settled(
    loop: Loop, key: str, session: LaunchSession, chunk: int, took: int, until_s: float
) -> tuple[int, int]:
    """Run chunks of plain steps until one is not faster than the one before; the first took `took` ns.

    Returns the number of steps and the duration of the last chunk.
    """
    steps, settled = chunk, False
    while not settled and steps < session.spec.measure.warmup_max:
        session.say(f"{steps} steps")
        before, took = took, _chunk(loop, session.device.clock, chunk)
        steps += chunk
        over = time.monotonic() + took / 1e9 > until_s
        steady = over or took > before * (1 - WARMUP_SETTLED)
        settled = session.control.agree(f"warm/{key}/{steps}", steady)
    return steps, took


def _chunk_of(step_ns: int, uses: int, limit_s: float) -> int:
    """Steps that each use takes, given what one took: as many as fit, with as many again that are timed."""
    # The probe's messages take a step, and new wrappers two or three until they are settled.
    fit = limit_s * 1e9 / max(1, step_ns) - 1 - 3 * uses
    return max(1, min(WARMUP_CHUNK, int(min(fit, 1e6) // (uses + 1))))


def _chunk(loop: Loop, clock: Clock, steps: int) -> int:
    """What a few plain steps take of this machine's time, ns, which a simulated device's clock does not tell."""
    begin = time.monotonic_ns()
    with clock.window(2 * steps):
        for _ in range(steps):
            loop.plain()
    return time.monotonic_ns() - begin if steps else 0
