"""Run rounds of blocks together with all ranks, until the pace says stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scaling.records.format import ClockRecord
from scaling.worker.measure.pace import Pace
from scaling.worker.session.session import LaunchSession

SHARE_MIN = 1e-3
"""A share above 0: each block has at least one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One block of a round, as every rank of the launch sees it."""

    id: int
    """The same on every rank, and used once in a launch."""
    participants: int
    mine: bool
    """Whether this rank takes part."""
    stage: str
    """What this rank is doing from here on, if it takes part."""
    run: Callable[[], None]
    expected_s: float = 0.0
    """About how long it takes, on rank 0."""


def run_rounds(
    session: LaunchSession,
    pace: Pace | None,
    turns: Callable[[int, float], Sequence[Turn]],
    *,
    note: Callable[[ClockRecord], None],
    key: str = "",
    label: str = "",
) -> None:
    """Run round after round; `turns(number, share)` returns the blocks of one in order.

    `share`: what of its usual steps a block of this round takes. The machine may have become slower since the lengths
    of blocks were chosen. A round may even end before its last block. `pace` decides on rank 0 and may be None
    elsewhere. `note` takes what clocks show that are compared between two rounds. `key` sets the rounds apart from
    others of the launch, and `label` goes before the round's number in the progress.
    """
    begin, number, share = time.monotonic(), 0, 1.0
    while share > 0:
        blocks, cut = turns(number, share), False
        for index, turn in enumerate(blocks):
            if pace is not None:
                elapsed_s = time.monotonic() - begin
                cut = number > 0 and (cut or pace.over(elapsed_s))
                rounds = number + index / len(blocks)
                session.progress(
                    f"{label}round {number + 1}",
                    rounds,
                    elapsed_s,
                    pace.seconds_left(rounds, elapsed_s),
                    turn.expected_s,
                )
            _take(session, turn, skip=cut)
        number += 1
        elapsed_s = time.monotonic() - begin
        more = 0.0
        if pace is not None and not cut and pace.go_on(number, elapsed_s):
            more = max(pace.share(number, elapsed_s), SHARE_MIN)
        share, due = session.control.agree(f"go/{key}{number}", [more, session.clocks_due], lead=session.lead)
        if share > 0 and due:
            note(session.compare_clocks(f"end of {label}round {number}"))


def _take(session: LaunchSession, turn: Turn, *, skip: bool) -> None:
    """Rank 0 starts each block once the one before is finished, also where it takes no part itself.

    `skip` is rank 0's: nobody runs the block.
    """
    control = session.control
    if session.lead:
        control.start(turn.id, conductor=True, skip=skip)
    if turn.mine and control.start(turn.id, conductor=False):
        session.stage = turn.stage
        turn.run()
        control.finish(turn.id, turn.participants)
    if session.lead and not skip:
        control.finished(turn.id)
