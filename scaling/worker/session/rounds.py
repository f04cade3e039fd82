"""Run rounds of blocks together with all ranks, until the pace says stop.

The time that a launch has, and what of its content fits into it by the steps that it timed itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scaling.errors import let_go
from scaling.records.files import decode, encode, write_json
from scaling.records.format import ClockRecord
from scaling.records.paths import RunFolder
from scaling.settings import schedule
from scaling.settings.budget import BLOCK_S, CaseCosts, Costs, allowance_s, fit_cases, fit_training
from scaling.settings.cases import Case
from scaling.settings.estimate import Machine, local_ranks
from scaling.settings.plan import Content, Plan, Promise, Trial
from scaling.settings.run import WARMUP_SHARE
from scaling.settings.sample import Traffic
from scaling.worker.measure.pace import Pace
from scaling.worker.session.session import LaunchSession, cores_of_host

if TYPE_CHECKING:
    from scaling.worker.measure.prepare import Ready

SHARE_MIN = 1e-3
"""A share above 0: each block has at least one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One block of a round, as every rank of the launch sees it."""

    id: int
    """Number of the block, equal on every rank and used once in a launch."""
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
        share, due = session.control.agree(f"go/{key}{number}", [more, session.clocks_due])
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


SLACK = 0.18
"""The least number of rounds may take this share of the promised time on top. The rest of a quarter is the report's."""
UNPROMISED = 0.25
"""Share of the budget that the least rounds may take on top, where nothing was promised."""


class Budget:
    """Counts from the end of the start-up, which is when it is made. Rank 0's decides for all ranks."""

    def __init__(self, session: LaunchSession) -> None:
        self._session = session
        self._measure = session.spec.measure
        self._begin_s = time.monotonic()
        self._promise = session.plan.promise
        late_s = 0.0
        if self._promise is not None:
            whole_s = self._promise.warmup_s + self._promise.rounds_s
            slack_s = SLACK * self._promise.seconds
            late_s = min(slack_s, _late_s(session, self._promise))
        else:
            whole_s = allowance_s(self._measure)
            slack_s = UNPROMISED * self._measure.budget_s
        self._end_s = self._begin_s + max(whole_s - late_s, 0.0)
        self._limit_s = self._begin_s + whole_s + max(0.0, slack_s - late_s)

    @property
    def rounds_s(self) -> float:
        """Time for rounds from now on."""
        return max(1.0, min(self._measure.budget_s, self._end_s - time.monotonic()))

    @property
    def limit_s(self) -> float:
        """Time for the least number of rounds, from now on."""
        return max(self.rounds_s, self._limit_s - time.monotonic())

    def warmup_left_s(self) -> float:
        """What is left of the warm-up's time."""
        promised = self._promise.warmup_s if self._promise is not None else 0.0
        share_s = max(WARMUP_SHARE * self._measure.budget_s, promised)
        return max(0.0, share_s - (time.monotonic() - self._begin_s))

    def fitted(
        self, trials: tuple[Trial, ...], ready: Mapping[int, Ready], traffic: Mapping[int, Traffic]
    ) -> Content:
        """What of the plan's content fits, by the steps of the warm-up. The same on every rank.

        `traffic`: what a rank will record, by world size.
        """
        content = None
        if self._session.lead:
            plan, within_s = self._session.plan, self.limit_s
            costs = replace(_costs(ready, plan), traffic=traffic)
            content = fit_training(plan, trials, costs, warm=True, within_s=within_s).content
        return self._agreed("content", content)

    def fitted_cases(
        self, key: str, sizes: tuple[int, ...], cases: tuple[Case, ...], costs: CaseCosts, *, stages: int
    ) -> Content:
        """What of one stage fits, by the steps of its warm-up; the same on every rank. `stages`: those left."""
        content = None
        if self._session.lead:
            plan = self._session.plan
            here = replace(plan, spec=replace(plan.spec, world_sizes=sizes))
            content = fit_cases(here, cases, costs, warm=True, within_s=self.limit_s / stages).content
            content = replace(content, whole_s=None)  # of this stage alone
        return self._agreed(key, content)

    def _agreed(self, key: str, proposal: Content | None) -> Content:
        session = self._session
        content = decode(Content, session.control.agree(key, encode(proposal)))
        if session.lead and content != session.plan.content:
            write_json(session.folder.content, content)
        return content


def _costs(ready: Mapping[int, Ready], plan: Plan) -> Costs:
    backend, machine = plan.spec.topology.backend, Machine(cores=cores_of_host())
    step_s = {n: warm.step_ns / 1e9 for n, warm in ready.items()}
    alone_s = {n: warm.alone_ns / 1e9 for n, warm in ready.items()}
    block_s = {n: BLOCK_S * machine.shared(local_ranks(plan, n)) for n in ready}
    exchange_s, sweep_s = {}, {}
    for n, warm in ready.items():
        took = {row.bytes: (row.done_ns - row.launch_ns) / 1e9 for row in warm.sent}
        sent = schedule.messages([0], list(took), backend)
        sweep_s[n] = sum(took[message.bytes] * message.sent for message in sent)
        wire_bytes = sum(message.bytes for message in warm.arms.wire())
        exchange_s[n] = exchange_of(wire_bytes, took, step_s[n])
    return Costs(step_s=step_s, alone_s=alone_s, exchange_s=exchange_s, sweep_s=sweep_s, block_s=block_s)


def exchange_of(wire_bytes: int, took_s: Mapping[int, float], step_s: float) -> float:
    """About what the exchange of a step's gradients takes, s. `took_s`: a message, by its bytes.

    A step holds it, so it takes no longer. A sweep of slow messages ends at small ones, which take no time by their
    bytes.
    """
    largest = max(took_s, default=0)
    return min(wire_bytes / largest * took_s[largest], step_s) if largest else 0.0


def _late_s(session: LaunchSession, promise: Promise) -> float:
    """How much later than promised the launch has started, and the search for the largest batch took; 0: not known.

    A launch begins when its command is noted.
    """
    run, late_s = RunFolder(Path(session.folder.path).parent.parent), 0.0
    with let_go(OSError):
        began_s = run.command.stat().st_mtime
        late_s = max(0.0, time.time() - began_s - promise.start_s)
        if promise.search_s and not session.folder.index:
            late_s += max(0.0, began_s - run.plan.stat().st_mtime - promise.search_s)
    return late_s
