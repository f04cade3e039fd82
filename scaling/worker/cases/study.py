"""Rounds over the cases of a launch, on one rank."""

from __future__ import annotations

import math
import time
from statistics import mean, stdev

import torch.distributed as dist

from scaling.cases import SCHEMA, Case, Outcome, Outcomes, Stretch, arms, cases, round_stretches, stages
from scaling.files import write_json
from scaling.largest import FITS, Largest
from scaling.spec import OVERRUN, Measure
from scaling.worker.cases.runner import Judged, Jury, Runner
from scaling.worker.clock import now_ns
from scaling.worker.launch import Launch
from scaling.worker.memory import Limit
from scaling.worker.pace import LEFT_ROUNDS, UNITS_MIN, student
from scaling.worker.progress import COMPILE_S
from scaling.worker.recorder import Recorder, Usage

WARMUP_MIN = 3
STRETCH_S = 1.0
"""A stretch lasts no longer than this: more rounds are worth more than long ones."""
STEPS_MIN, STEPS_MAX = 2, 2000
BUDGET_SHARE = 0.8
"""Of the budget that the planned rounds are to take: warm-up and changing cases take the rest."""
CHANGE_S = 30.0
"""What changing to a case may well take: its batch is made, the parameters are converted."""

Pair = tuple[int, int]
"""(world size, case)"""


class Study:
    """Measures every case that fits: prepared once, then in random order, round by round."""

    def __init__(self, launch: Launch, runner: Runner, limit: Limit, largest: Largest | None) -> None:
        self._launch = launch
        self._runner = runner
        self._limit = limit
        self._cases = cases(launch.spec, largest.rungs() if largest else None)
        self._jury = Jury(launch.control, launch.device, limit, rank=launch.rank)
        self._judged: dict[Pair, Judged] = {}
        self._step_ns: dict[Pair, int] = {}

    def run(self) -> None:
        """All stages, then how each case stands."""
        launch = self._launch
        self._launch.recorder = Recorder(launch.folder.rank(launch.rank), launch.head())
        try:
            launch.clock("begin")
            measured = tuple(n for n in launch.spec.world_sizes if n in {t.world_size for t in launch.trials})
            for stage, sizes in enumerate(stages(launch.spec)):
                here = tuple(n for n in sizes if n in measured)
                if here:
                    self._stage(stage, here)
                    self._write()
            launch.clock("end")
        finally:
            self._launch.recorder.close()
        launch.note_memory()

    def _stage(self, stage: int, sizes: tuple[int, ...]) -> None:
        n = max(sizes)
        if self._launch.rank < n:
            self._prepare(stage, n)
        # Ranks outside sleep in the store's slices meanwhile.
        alive = self._launch.control.agree(
            f"alive/{stage}",
            [i for i in range(len(self._cases)) if self._fits(n, i)],
            lead=self._launch.rank == 0,
        )
        for size in sizes:
            for index in range(len(self._cases)):
                if (n, index) in self._judged:
                    self._judged[size, index] = self._judged[n, index]
                    self._step_ns[size, index] = self._step_ns.get((n, index), 0)
        self._rounds(stage, sizes, tuple((size, index) for size in sizes for index in alive))
        self._runner.close()

    def _fits(self, n: int, index: int) -> bool:
        return (n, index) in self._judged and self._judged[n, index].status == FITS

    def _prepare(self, stage: int, n: int) -> None:
        """Every case once alone, judged by all, then warmed up; the largest first, with memory still in one piece."""
        launch = self._launch
        launch.stage = f"warm-up of world size {n}"
        launch.progress(launch.stage)
        bare = self._jury.bare(f"{stage}/bare", n, self._runner)
        if bare.status != FITS:
            self._judged |= {(n, i): bare for i in range(len(self._cases))}
            return
        with self._limit.on():
            self._runner.open(n)
        self._limit.begin()
        for index, case in sorted(enumerate(self._cases), key=lambda item: -item[1].batch):

            def alone(case: Case = case) -> None:
                self._runner.use(case)
                self._runner.alone()

            word = f"{launch.stage}, case {index + 1}"
            launch.progress(word, expected_s=COMPILE_S if case.variant.compile else None)
            self._runner.settle(case)
            self._judged[n, index] = self._jury.judge(f"{stage}/{index}", n, alone)
            if self._fits(n, index):
                launch.progress(f"{word}, steps")
                self._step_ns[n, index] = self._warm_up()
            self._runner.drop()

    def _warm_up(self) -> int:
        """What a step takes, ns, about."""
        took = 0
        with self._limit.on():
            for _ in range(WARMUP_MIN):
                begin = now_ns()
                self._runner.together()
                self._launch.device.synchronize()
                took = now_ns() - begin
        return took

    def _rounds(self, stage: int, sizes: tuple[int, ...], alive: tuple[Pair, ...]) -> None:
        launch, spec = self._launch, self._launch.spec
        if not alive:
            return
        lead = launch.rank == 0
        pace = _Pace(spec.measure, len(alive) * len(arms(spec)), len(stages(spec)))
        own = [pace.steps(self._step_ns.get(pair, 0)) for pair in alive] if lead else None
        steps = dict(zip(alive, launch.control.agree(f"steps/{stage}", own, lead=lead), strict=True))
        begin, number, go = time.monotonic(), 0, True
        while go:
            stretches = round_stretches(spec, launch.folder.index, stage, number, alive)
            for index, stretch in enumerate(stretches):
                pair = (stretch.world_size, stretch.case)
                timed, lead_in = steps[pair]
                rounds, elapsed_s = number + index / len(stretches), time.monotonic() - begin
                launch.progress(
                    f"{sizes[-1]} ranks, round {number + 1}",
                    rounds,
                    elapsed_s,
                    pace.left(rounds, elapsed_s),
                    CHANGE_S + (1 + lead_in + timed) * self._step_ns.get(pair, 0) / 1e9,
                )
                self._stretch(stretch, timed, lead_in, pace)
            number += 1
            more = pace.go_on(number, time.monotonic() - begin) if lead else None
            go = bool(launch.control.agree(f"go/{stage}/{number}", more, lead=lead))

    def _stretch(self, stretch: Stretch, steps: int, lead_in: int, pace: _Pace) -> None:
        """As Launch runs a block: rank 0 gives the word, and waits for all to be through."""
        launch, n = self._launch, stretch.world_size
        if launch.rank == 0:
            launch.control.start(stretch.id, conductor=True)
        if launch.rank < n:
            launch.stage = f"case {stretch.case + 1} at world size {n}, round {stretch.round}"
            launch.control.start(stretch.id, conductor=False)
            step_ns = self._measure(stretch, steps, lead_in)
            if launch.rank == 0:
                pace.note((n, stretch.case), stretch.arm, step_ns)
            launch.control.finish(stretch.id, n)
        if launch.rank == 0:
            launch.control.finished(stretch.id)

    def _measure(self, stretch: Stretch, steps: int, lead_in: int) -> float:
        """One stretch of one case, recorded. Returns the mean of a step, ns."""
        launch, case = self._launch, self._cases[stretch.case]
        with self._limit.on():
            self._runner.use(case)
            self._runner.together()  # what a new batch sets up anew is not timed
            launch.device.reset_peak()
            if stretch.world_size > 1:
                dist.barrier(launch.groups[stretch.world_size].control)
            with Usage() as usage:
                rows = self._runner.run(stretch.arm, steps, lead_in)
        peak = launch.device.peak_bytes()
        self._runner.drop()
        self._launch.recorder.block(
            {
                "id": stretch.id,
                "round": stretch.round,
                "world_size": stretch.world_size,
                "arm": stretch.arm,
                "detailed": False,
                "solo_rank": -1,
                "batch": case.batch,
                "accumulation": case.variant.accumulation_steps,
                "lead_in": lead_in,
                "steps": steps,
                "case": stretch.case,
                "peak_bytes": peak,
            },
            rows,
            [],
            usage,
        )
        return mean(row[1] - row[0] for row in rows) / (steps if len(rows) < steps else 1)

    def _write(self) -> None:
        """cases.json, by rank 0."""
        if self._launch.rank == 0:
            outcomes = tuple(
                Outcome(world_size=n, case=index, status=judged.status, rank=judged.rank, error=judged.error)
                for (n, index), judged in sorted(self._judged.items())
            )
            write_json(self._launch.folder.cases, Outcomes(schema=SCHEMA, outcomes=outcomes))


class _Pace:
    """How long stretches are and when to stop; rank 0 decides for all."""

    def __init__(self, measure: Measure, stretches: int, stages: int) -> None:
        """`stretches` of a round."""
        self._measure = measure
        self._budget_s = measure.budget_s / stages
        self._stretch_s = min(STRETCH_S, BUDGET_SHARE * self._budget_s / measure.rounds_min / stretches)
        self._means: dict[tuple[Pair, str], list[float]] = {}

    def steps(self, step_ns: int) -> tuple[int, int]:
        """(timed, lead-in) steps of a stretch."""
        fit = int(self._stretch_s * 1e9 / max(1, step_ns))
        lead_in = min(self._measure.lead_in, max(1, fit // 4))
        return max(STEPS_MIN, min(STEPS_MAX, fit - lead_in)), lead_in

    def note(self, pair: Pair, arm: str, step_ns: float) -> None:
        """What a step took in one stretch."""
        self._means.setdefault((pair, arm), []).append(step_ns)

    def go_on(self, rounds: int, elapsed_s: float) -> bool:
        """Whether to start another round."""
        measure = self._measure
        if rounds >= measure.rounds_max:
            return False
        expected_s = elapsed_s * (rounds + 1) / rounds
        if rounds < measure.rounds_min:
            return expected_s <= OVERRUN * self._budget_s
        return expected_s <= self._budget_s and not self._precise(measure.target_half_width)

    def left(self, rounds: float, elapsed_s: float) -> float | None:
        """Seconds until the last round ends at the latest, None while unknown."""
        if rounds < LEFT_ROUNDS:
            return None
        whole = min(self._budget_s, elapsed_s / rounds * self._measure.rounds_max)
        return round(max(0.0, whole - elapsed_s), 1)

    def _precise(self, target: float | None) -> bool:
        return target is not None and all(_half(found) <= target for found in self._means.values())


def _half(means: list[float]) -> float:
    """Half of the 95 % interval of a mean, as a fraction of it."""
    if len(means) < UNITS_MIN:
        return math.inf
    half: float = student(len(means) - 1) * stdev(map(math.log, means)) / len(means) ** 0.5
    return half
