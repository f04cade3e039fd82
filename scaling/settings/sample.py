"""Which rounds of a launch have details, so that its rank files stay within a bound. Pure: no I/O, no torch.

Details (DDP alone, buckets, replay, the size sweep) are most of a rank's file. Every rank has to write its own: a
bucket begins to move when its last rank is ready, and is done when its last rank is, so a sample of ranks would find
both too early. A sample of rounds has no such bias. It is chosen before the first round, from sizes alone.

What a host writes hardly depends on how many hosts there are. Their sum grows, and one analysis reads it. So the bound
is for all hosts together, and each host may write its share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from scaling.settings.plan import Content, Plan, Trial
from scaling.settings.run import LEAST_ROUNDS, Measure
from scaling.settings.schedule import DDP_SOLO, FABRIC, PAIRS, PLAIN, REPLAY, REPLAYED, Block, round_blocks
from scaling.units import format_bytes

LEAST_DETAILED = 2 * LEAST_ROUNDS
"""Rounds with details at least: the first LEAST_ROUNDS, so that a launch that ends early has intervals, and as many
spread over the rest, so that its begin does not speak for all of it."""

MARGIN = 2
"""Nothing is sampled where the files of this many times the rounds that there is time for stay within the bound."""

# Written for a rank, bytes, measured in files of Gloo (docs/performance.md, "What the files take").
BLOCK_BYTES = 340
"""A block's line and that of its memory."""
STEP_BYTES, PLAIN_BYTES = 65, 25
"""A step with phase stamps, and one without."""
CALL_BYTES = 30
"""A collective of a step: 29 to 35 in the probe, 21 to 28 in replay, 12 to 18 over a single rank."""
TENSOR_BYTES = 19
"""When a parameter was ready, in the line of a ddp_solo block."""
HEAD_BYTES, MEMBER_BYTES = 1000, 5
"""The lines that belong to no block, and each rank of a group in the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one rank records of a world size's blocks."""

    calls: int
    """Collectives of a step."""
    swept: int = 0
    """Messages of a sweep."""
    tensors: int = 0
    """Parameters; 0 where their number is not known."""


NOTHING = Traffic(calls=0)
"""Where it is not known."""


class Round(NamedTuple):
    """What one round takes."""

    bytes: float
    """Bytes of the files of the host that writes most."""
    seconds: float


def share_bytes(plan: Plan) -> float:
    """What the rank files of one launch may take on a host."""
    return plan.spec.measure.records_bytes_max / plan.hosts / plan.spec.repeats


def chosen(
    plan: Plan,
    trials: tuple[Trial, ...],
    content: Content,
    traffic: Mapping[int, Traffic],
    round_s: Callable[[Content], float],
    *,
    steps: int,
    rounds_s: float,
) -> Content:
    """The content with the rounds that have details. All have them where the files of all stay within the bound.

    `traffic`: by world size. `round_s`: how long a round takes that measures a content. `steps`: of a block, as many as
    the settings ask for; in a launch that is short of time blocks have fewer. `rounds_s`: time for all rounds.
    """
    if content.detailed is not None and len(content.detailed) < LEAST_ROUNDS:  # the budget holds no more
        return content
    content = replace(content, detailed=None)
    if plan.variant is not None or not content.has_sampled:
        return content
    measure, light = plan.spec.measure, content.without_details()
    fit = rounds_s / measure.rounds_min / max(1e-9, round_s(content))
    steps = max(1, min(steps, int(steps * fit)))
    bytes_of = (host_bytes(plan, trials, candidate, traffic, steps) for candidate in (content, light))
    whole, rest = (
        Round(size, max(1e-9, round_s(candidate) * min(1.0, fit)))
        for candidate, size in zip((content, light), bytes_of, strict=True)
    )
    members = sum(trial.world_size for trial in plan.trials)
    heads_bytes = plan.spec.topology.ranks_per_host * (HEAD_BYTES + members * MEMBER_BYTES)
    room = share_bytes(plan) - heads_bytes
    return replace(content, detailed=detailed_rounds(measure, whole, rest, room=room, rounds_s=rounds_s))


def detailed_rounds(
    measure: Measure, whole: Round, rest: Round, *, room: float, rounds_s: float
) -> tuple[int, ...] | None:
    """Rounds with details: as many as `room` bytes hold, LEAST_DETAILED at least; None: all rounds.

    `whole`, `rest`: a round with and without them. `rounds_s`: time for all rounds.
    """
    likely = max(measure.rounds_min, math.ceil(rounds_s / whole.seconds))
    most = min(measure.rounds_max, MARGIN * likely)
    if most * whole.bytes <= room or most <= LEAST_DETAILED:
        return None

    def rounds(detailed: int) -> int:
        """As many as there is time for."""
        others = int((rounds_s - detailed * whole.seconds) / rest.seconds)
        return min(measure.rounds_max, max(detailed + max(0, others), measure.rounds_min))

    def size(detailed: int) -> float:
        return detailed * whole.bytes + (rounds(detailed) - detailed) * rest.bytes

    count = next((k for k in range(most, LEAST_DETAILED, -1) if size(k) <= room), LEAST_DETAILED)
    return spread(count, rounds(count))


def spread(count: int, rounds: int) -> tuple[int, ...]:
    """The first LEAST_ROUNDS of some rounds, and as many others, evenly spread, as make `count`."""
    others, left = count - LEAST_ROUNDS, rounds - LEAST_ROUNDS
    return (*range(LEAST_ROUNDS), *(LEAST_ROUNDS + (2 * k + 1) * left // (2 * others) for k in range(others)))


def host_bytes(
    plan: Plan, trials: tuple[Trial, ...], content: Content, traffic: Mapping[int, Traffic], steps: int
) -> int:
    """What the ranks of the first host write in a round. It has ranks at every world size, so no host writes more.

    `steps`: timed steps of a block.
    """
    local = {rank for rank in range(plan.ranks) if plan.spec.topology.host_of(rank) == 0}
    planned = replace(plan, content=content)
    return sum(
        len(local.intersection(rank for group in block.groups for rank in group))
        * _block_bytes(block, traffic.get(block.trial.world_size, NOTHING), steps)
        for block in round_blocks(planned, trials, 0, 0, plan.baseline(trials))
    )


def _block_bytes(block: Block, traffic: Traffic, steps: int) -> int:
    """What one rank writes of a block."""
    rows, calls = steps, steps * traffic.calls if block.detailed else 0
    if block.arm == FABRIC:
        rows, calls = 0, traffic.swept  # a step of two stamps is in the bytes of its collective
    elif block.arm in (REPLAY, PAIRS):
        rows, calls = REPLAYED, REPLAYED * traffic.calls
    tensors = traffic.tensors if block.arm == DDP_SOLO else 0
    step_bytes = PLAIN_BYTES if block.arm == PLAIN else STEP_BYTES
    return BLOCK_BYTES + rows * step_bytes + calls * CALL_BYTES + tensors * TENSOR_BYTES


def details_line(plan: Plan, detailed: Collection[int], rounds: int) -> str:
    """Which rounds have details, and why not all. `detailed`: their numbers; `rounds`: how many were measured."""
    which = f"{sum(number < rounds for number in detailed)} of {rounds} rounds, chosen before the run"
    if len(detailed) < LEAST_ROUNDS:
        return f"details in {which}: the budget held no more"
    if len(detailed) > LEAST_DETAILED:
        return f"details in {which}: with more, rank files would take more than {bound(plan)}"
    return f"details in {which}: rank files may take {bound(plan)}, but {LEAST_DETAILED} rounds have details at least"


def bound(plan: Plan) -> str:
    """What the rank files of a host may take, in words."""
    whole = format_bytes(plan.spec.measure.records_bytes_max)
    return f"{format_bytes(share_bytes(plan))} a host and launch (measure.records_max={whole})"
