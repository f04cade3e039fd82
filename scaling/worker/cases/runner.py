"""The interface that runs a case on one rank, and how ranks try whether a case fits into memory.

Measure every case that fits: prepare each once, then run rounds over all of them.
"""

from __future__ import annotations

import collections
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from scaling.records.files import write_json
from scaling.records.format import AnyStepRow, BlockRecord, RecordedBlock
from scaling.settings.budget import CaseCosts
from scaling.settings.cases import (
    FAILED,
    FITS,
    OOM,
    Case,
    CaseBlock,
    Largest,
    arms,
    cases,
    round_stretches,
    stages,
)
from scaling.settings.plan import ENDED_SCHEMA, LEFT_OUT, Ended, Outcome, Outcomes
from scaling.settings.run import LEAST_ROUNDS
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.accelerator.memory import Limit, is_out_of_memory
from scaling.worker.measure.pace import CASE_LEAST, Means, Pace, case_lengths
from scaling.worker.measure.recorder import Recorder, Usage
from scaling.worker.session.control import Control
from scaling.worker.session.progress import COMPILE_S
from scaling.worker.session.rounds import Budget, Turn, run_rounds
from scaling.worker.session.session import LaunchSession


class Runner:
    """Runs one case at a time. `use` makes what the case needs and `drop` releases it.

    What a program has no need of does nothing here: replicas that answer requests need no peers and leave nothing.
    """

    fewest: tuple[int, ...] = (1,)
    """Batch sizes to try for steps that only set something up; the first that the model accepts is used."""
    least = 1
    """The one of them that `bare` tried last."""

    def open(self, world_size: int) -> None:
        """Prepare for a world size, together with its ranks."""

    def bare(self, samples: int) -> None:
        """Run one step of so many samples, alone, before `open`, to see whether the model fits at all."""

    def settle(self, case: Case) -> None:
        """Together with the ranks: allocate what a step of the case finds in memory when it begins."""

    def use(self, case: Case) -> None:
        """Switch to this case."""

    def alone(self) -> None:
        """Run one step that waits for no peer and takes as much memory as any step of the case."""

    def together(self) -> None:
        """Run one step as it is measured."""

    def run(self, arm: str, steps: int, lead_in: int) -> list[AnyStepRow]:
        """Run steps of an arm and return their rows, after `lead_in` steps that are not recorded."""
        raise NotImplementedError

    def drop(self) -> None:
        """Release the case."""

    def close(self) -> None:
        """Release the world size."""
        self.drop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Ended):
    """The outcome, over all ranks, of a step that each tried alone."""

    peak_bytes: int | None = None


class Jury:
    """Lets each rank try a step alone and combines the outcomes through the store, so no rank waits in a collective."""

    def __init__(self, control: Control, device: Accelerator, limit: Limit, *, rank: int) -> None:
        self._control, self._device, self._limit, self._rank = control, device, limit, rank

    def bare(self, key: str, count: int, runner: Runner) -> Judged:
        """Whether the model fits with the fewest samples it accepts; batch normalisation fails on a single one."""
        for samples in runner.fewest:
            judged = self.judge(f"{key}/{samples}", count, partial(runner.bare, samples))
            if judged.status != FAILED:
                break
        return judged

    def judge(self, key: str, count: int, step: Callable[[], None]) -> Judged:
        """Whether `step` ran on each of the ranks below `count`; this rank is one of them."""
        status, error, peak = self._outcome(step)
        if status != FITS:
            self._device.release_memory()
        outcomes = self._control.judge(f"case/{key}", [status, error, peak], self._rank, count, _verdict)
        return Judged(**outcomes)

    def _outcome(self, step: Callable[[], None]) -> tuple[str, str | None, int]:
        """Try the step. The exception is dropped here, since its frames keep alive what the step had allocated."""
        self._device.reset_peak()
        try:
            with self._limit.on():
                step()
                self._device.synchronize()
        except Exception as error:  # noqa: BLE001  # a failure is the result of the case
            status = OOM if is_out_of_memory(error) else FAILED
            if status == FAILED:
                traceback.print_exc()
            first_line = [line[:300] for line in str(error).strip().splitlines()[:1]]
            return status, ": ".join([type(error).__name__, *first_line]), 0
        return FITS, None, self._device.peak_bytes()


def _verdict(all_of_them: list[list[Any]]) -> dict[str, Any]:
    for status in (FAILED, OOM):
        for rank, (rank_status, error, _) in enumerate(all_of_them):
            if rank_status == status:
                return {"status": status, "rank": rank, "error": error}
    return {"status": FITS, "peak_bytes": max(peak for _, _, peak in all_of_them)}


WARMUP_MIN = 3
CHANGE_S = 30.0
"""Allowance for changing to another case: its batch is made and the parameters are converted."""

Pair = tuple[int, int]
"""(world size, case)"""


class Study:
    """The cases of a launch on one rank."""

    def __init__(self, session: LaunchSession, runner: Runner, limit: Limit, largest: Largest | None) -> None:
        self._session, self._runner, self._limit = session, runner, limit
        self._cases = cases(session.spec, largest.rungs() if largest else None)
        self._sizes = {trial.world_size for trial in session.trials}
        self._jury = Jury(session.control, session.device, limit, rank=session.rank)
        self._budget = Budget(session)
        self._judged: dict[Pair, Judged] = {}
        self._change_s: dict[int, float] = collections.defaultdict(float)
        self._alone_s = 0.0
        self._step_ns: dict[Pair, int] = collections.defaultdict(int)
        """About what a step takes; 0 where this rank ran none."""

    def run(self) -> None:
        """Run all stages, and record the outcome of each case."""
        session = self._session
        head = session.launch_head(warmup={}, fed_ns={})
        self._recorder = Recorder(session.folder.rank(session.rank), head)
        try:
            self._recorder.note(session.compare_clocks("begin"))
            for stage, sizes in enumerate(stages(session.spec)):
                here = tuple(n for n in sizes if n in self._sizes)
                if here:
                    self._stage(stage, here)
                    self._write()
            self._recorder.note(session.compare_clocks("end"))
            self._recorder.end()
        finally:
            self._recorder.close()
        session.record_memory()

    def _stage(self, stage: int, sizes: tuple[int, ...]) -> None:
        session, n = self._session, max(sizes)
        if session.rank < n:
            self._prepare(stage, n)
        # Ranks outside the world size sleep on the store meanwhile.
        fitting = [i for i in range(len(self._cases)) if self._fits(n, i)]
        alive = session.control.agree(f"alive/{stage}", fitting)
        for size in sizes:
            for index in range(len(self._cases)):
                if (n, index) in self._judged:
                    self._judged[size, index] = self._judged[n, index]
                    self._step_ns[size, index] = self._step_ns[n, index]
        pairs = tuple((size, index) for size in sizes for index in alive)
        if pairs:
            self._rounds(stage, sizes, self._within_budget(stage, pairs))
        self._runner.close()

    def _stages_left(self, stage: int) -> int:
        return sum(not self._sizes.isdisjoint(sizes) for sizes in stages(self._session.spec)[stage:])

    def _fits(self, n: int, index: int) -> bool:
        return (n, index) in self._judged and self._judged[n, index].status == FITS

    def _within_budget(self, stage: int, pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
        """Those that the budget holds."""
        place = {index: k for k, index in enumerate(sorted({index for _, index in pairs}))}
        asked = tuple(self._cases[index] for index in place)
        costs = CaseCosts(
            step_s={(n, place[index]): self._step_ns[n, index] / 1e9 for n, index in pairs},
            change_s={k: self._change_s[index] for index, k in place.items()},
        )
        sizes = tuple(sorted({n for n, _ in pairs}))
        content = self._budget.fitted_cases(
            f"content/{stage}", sizes, asked, costs, stages=self._stages_left(stage)
        )
        fitting = tuple(
            (n, index)
            for n, index in pairs
            if content.holds(n) and content.has_batch(self._cases[index].batch)
        )
        for pair in set(pairs) - set(fitting):
            self._judged[pair] = Judged(status=LEFT_OUT)
        return fitting

    def _prepare(self, stage: int, n: int) -> None:
        """Try every case alone, combine the outcomes, and warm it up.

        The largest case comes first, while memory is not yet fragmented.
        """
        session = self._session
        session.untimed()
        session.stage = f"warm-up of world size {n}"
        session.progress(session.stage)
        bare = self._jury.bare(f"{stage}/bare", n, self._runner)
        if bare.status != FITS:
            self._judged |= {(n, i): bare for i in range(len(self._cases))}
            return
        with self._limit.on():
            self._runner.open(n)
        self._limit.begin()
        least = min(case.batch for case in self._cases)
        for index, case in sorted(enumerate(self._cases), key=lambda item: -item[1].batch):
            if not session.plan.content.has_batch(case.batch):
                self._judged[n, index] = Judged(status=LEFT_OUT)
                continue
            what = f"{session.stage}, case {index + 1}"
            session.progress(what, expected_s=COMPILE_S if case.variant.compile else None)
            self._runner.settle(case)
            self._judged[n, index] = self._jury.judge(f"{stage}/{index}", n, partial(self._alone, case))
            if self._fits(n, index) and case.batch > least and self._too_dear(stage, index):
                self._judged[n, index] = Judged(status=LEFT_OUT)
            if self._fits(n, index):
                session.progress(f"{what}, steps")
                self._step_ns[n, index] = self._warm_up(f"{stage}/{index}")
            self._runner.drop()

    def _too_dear(self, stage: int, index: int) -> bool:
        """Whether the least rounds of this case alone would take more time than there is, by its first step."""
        measure = self._session.spec.measure
        steps = min(measure.rounds_min, LEAST_ROUNDS) * CASE_LEAST * len(arms(self._session.spec))
        over = steps * self._alone_s > self._budget.limit_s / self._stages_left(stage)
        return bool(self._session.control.agree(f"dear/{stage}/{index}", over))

    def _alone(self, case: Case) -> None:
        begin = now_ns()
        self._runner.use(case)
        ready_ns = now_ns()
        self._runner.alone()
        self._session.device.synchronize()
        self._alone_s = (now_ns() - ready_ns) / 1e9
        self._change_s[self._cases.index(case)] = (ready_ns - begin) / 1e9

    def _warm_up(self, key: str) -> int:
        """About what a step takes, ns. One step is enough where there is no time for more."""
        session, took, steps = self._session, 0, WARMUP_MIN
        with self._limit.on():
            for index in range(WARMUP_MIN):
                begin = now_ns()
                self._runner.together()
                session.device.synchronize()
                took = now_ns() - begin
                if index == 0:
                    left_s = self._budget.warmup_left_s() / len(self._cases)
                    enough = 1 if WARMUP_MIN * took / 1e9 > left_s else WARMUP_MIN
                    steps = session.control.agree(f"warm/{key}", enough)
                if index + 1 >= steps:
                    break
        return took

    def _rounds(self, stage: int, sizes: tuple[int, ...], alive: tuple[Pair, ...]) -> None:
        session, spec, means = self._session, self._session.spec, Means()
        left = self._stages_left(stage)
        budget_s, limit_s = self._budget.rounds_s / left, self._budget.limit_s / left
        step_ns = [self._step_ns[pair] for pair in alive]
        pace, lengths = None, None
        if session.lead:
            pace = Pace(spec.measure, means, budget_s=budget_s, limit_s=limit_s)
            lengths = case_lengths(spec.measure, step_ns, budget_s=budget_s, arms=len(arms(spec)))
        agreed = session.control.agree(f"steps/{stage}", lengths)
        session.timed(str(stage), max(step_ns) / 1e9)
        lengths_of: dict[Pair, tuple[int, int]] = dict(zip(alive, agreed, strict=True))

        def turn(stretch: CaseBlock, share: float) -> Turn:
            n = stretch.world_size
            steps, lead_in = lengths_of[n, stretch.case]
            return Turn(
                id=stretch.id,
                participants=n,
                mine=session.rank < n,
                stage=f"case {stretch.case + 1} at world size {n}, round {stretch.round}",
                run=partial(self._measure, stretch, max(1, int(steps * share)), lead_in, means),
                expected_s=CHANGE_S + (1 + steps + lead_in) * self._step_ns[n, stretch.case] / 1e9,
            )

        def turns(number: int, share: float) -> list[Turn]:
            stretches = round_stretches(spec, session.folder.index, stage, number, alive)
            return [turn(stretch, share) for stretch in stretches]

        run_rounds(
            session, pace, turns, note=self._recorder.note, key=f"{stage}/", label=f"{sizes[-1]} ranks, "
        )

    def _measure(self, stretch: CaseBlock, steps: int, lead_in: int, means: Means) -> None:
        """Run and record one block of one case."""
        session, case = self._session, self._cases[stretch.case]
        with self._limit.on():
            self._runner.use(case)
            self._runner.together()  # do not time what a new batch sets up
            session.device.reset_peak()
            if stretch.world_size > 1:
                session.device.barrier(session.groups[stretch.world_size].control)
            with Usage() as usage:
                rows = self._runner.run(stretch.arm, steps, lead_in)
        peak = session.device.peak_bytes()
        self._runner.drop()
        record = BlockRecord(
            id=stretch.id,
            round=stretch.round,
            world_size=stretch.world_size,
            arm=stretch.arm,
            detailed=False,
            solo_rank=-1,
            batch=case.batch,
            accumulation=case.variant.accumulation_steps,
            lead_in=lead_in,
            steps=steps,
            case=stretch.case,
            peak_bytes=peak,
            **usage.fields(),
        )
        self._recorder.block(RecordedBlock(block=record, steps=rows))
        step_ns = mean(row.end_ns - row.begin_ns for row in rows) / (steps if len(rows) < steps else 1)
        means.note((stretch.world_size, stretch.case, stretch.arm), step_ns)

    def _write(self) -> None:
        """Write cases.json, on rank 0."""
        if self._session.lead:
            outcomes = tuple(
                Outcome(world_size=n, case=index, status=judged.status, rank=judged.rank, error=judged.error)
                for (n, index), judged in sorted(self._judged.items())
            )
            write_json(self._session.folder.cases, Outcomes(schema=ENDED_SCHEMA, outcomes=outcomes))
