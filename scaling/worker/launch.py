"""One launch: every world size as a sub-group of the same processes, measured in interleaved rounds."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from scaling.plan import Block, Plan, Trial, round_blocks
from scaling.records import BARE_ONE, FABRIC, PLAIN, PROBE, REPLAY, STEP_ARMS
from scaling.store import LaunchFolder, write_json
from scaling.worker.arms import Arms, all_reduce_row
from scaling.worker.clock import now_ns
from scaling.worker.control import Control
from scaling.worker.environment import describe
from scaling.worker.inject import Faults
from scaling.worker.offsets import offset_ns
from scaling.worker.pace import Pace, fabric_sizes
from scaling.worker.recorder import Recorder, Usage
from scaling.worker.workload import build

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
WARMUP_CHUNK = 3
WARMUP_SETTLED = 0.10
"""Warm-up ends when a chunk of steps is no longer faster than the chunk before by more than this."""


class Launch:
    """The worker's side of a launch, on one rank."""

    def __init__(self, plan: Plan, folder: LaunchFolder, trials: tuple[Trial, ...]) -> None:
        self.plan, self.spec, self.folder = plan, plan.spec, folder
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.trials = trials
        timeout = timedelta(seconds=self.spec.measure.step_timeout_s)
        dist.init_process_group("gloo", timeout=timeout)
        everybody = dist.distributed_c10d._get_default_store()  # noqa: SLF001
        store = dist.PrefixStore(f"launch/{folder.index}", everybody)  # type: ignore[attr-defined]
        self.control = Control(store, self.rank)
        # Every group is made by every rank in the same order; group n is ranks 0..n-1, which fill hosts in turn.
        self.groups = {
            t.world_size: dist.new_group(list(range(t.world_size)), timeout=timeout)
            for t in sorted(trials, key=lambda t: t.world_size)
        }
        self.solo = [dist.new_group([r], timeout=timeout) for r in range(self.world)][self.rank]
        local = int(os.environ["LOCAL_RANK"])
        self.faults = Faults(self.spec.inject, rank=self.rank, first_on_host=local == 0)
        self.host = self.spec.topology.host_of(self.rank)
        self.arms: dict[int, Arms] = {}
        self.sizes: dict[int, list[int]] = {}
        self.warmup: dict[int, int] = {}
        self.step_ns: dict[int, int] = {}
        self.stage = "start"

    def run(self) -> None:
        """Set up, warm up, measure rounds until the pace says stop, write down."""
        torch.set_num_threads(self.spec.threads)
        torch.manual_seed(self.spec.seed)
        workload = build(self.spec.model.target, self.spec.model.args)
        write_json(self.folder.env(self.rank), describe(self.spec, self.rank, self.host, workload.module))
        self._progress("warm-up", 0.0, None)
        trials = []
        for trial in sorted(self.trials, key=lambda t: t.world_size):
            self.stage = f"warm-up of world size {trial.world_size}"
            if self._prepare(trial, workload):
                trials.append(trial)
        self.recorder = Recorder(self.folder.rank(self.rank), self._head())
        try:
            self._clock("begin")
            self._rounds(tuple(trials))
            self._clock("end")
        finally:
            self.faults.close()
            self.recorder.close()
        self.stage = "end"
        self.control.meet("end", self.world)
        dist.destroy_process_group()

    def _clock(self, at: str) -> None:
        """Note this rank's clock against rank 0's. Ranks that share rank 0's kernel share its clock."""
        self.stage = f"clock offsets at the {at}"
        self.control.meet(f"clock/{at}", self.world)  # all idle: nobody sits long in a receive
        offset, bound = offset_ns(self.rank, self.world, None)
        self.recorder.note("clock", at=at, offset_ns=offset, bound_ns=bound, time_ns=now_ns())

    def _head(self) -> dict[str, Any]:
        groups = {str(n): list(range(n)) for n in self.groups} | {"1": [self.rank]}
        return {
            "rank": self.rank,
            "host": self.host,
            "hostname": os.uname().nodename,
            "launch": self.folder.index,
            "world": self.world,
            "groups": groups,
            "warmup": {str(n): steps for n, steps in self.warmup.items()},
        }

    def _prepare(self, trial: Trial, workload: Any) -> bool:
        """Wrap, try one local step, agree that it fits, warm up. False when some rank ran out of memory."""
        n = trial.world_size
        if self.rank < n:
            arms = Arms(
                spec=self.spec,
                trial=trial,
                workload=workload,
                group=self.groups[n],
                solo=self.solo,
                faults=self.faults,
                rank=self.rank,
            )
            try:
                arms.bare.local()
                fits = True
            except OUT_OF_MEMORY:
                fits = False
            if self.control.all_true(f"fits/{n}", n, fits):
                self.arms[n] = arms
                self._warm_up(trial, arms)
        if self.rank == 0:
            self.control.say(f"ready/{n}", n in self.arms)
        fits_all = bool(self.control.hear(f"ready/{n}"))
        if not fits_all and self.rank == 0:
            write_json(self.folder.path / f"oom-{n}.json", {"world_size": n})
        return fits_all

    def _warm_up(self, trial: Trial, arms: Arms) -> None:
        """Each loop a few steps (DDP rebuilds its buckets in the second), then plain ones until they settle."""
        n, lead = trial.world_size, self.rank == 0
        for loop in (arms.bare, arms.plain, arms.solo, arms.detailed):
            if loop is not None:
                for _ in range(WARMUP_CHUNK):
                    loop.plain()
                if loop is arms.detailed:
                    arms.take(PROBE)(loop.forward_end_ns)
        steps, before, settled = WARMUP_CHUNK, float("inf"), False
        while not settled and steps < self.spec.measure.warmup_max:
            begin = now_ns()
            for _ in range(WARMUP_CHUNK):
                arms.plain.plain()
            steps += WARMUP_CHUNK
            took = now_ns() - begin
            settled = self.control.agree(f"warm/{n}/{steps}", took > before * (1 - WARMUP_SETTLED), lead=lead)
            before = took
        self.warmup[n] = steps
        self.step_ns[n] = int(before) // WARMUP_CHUNK
        if n > 1:
            ceiling = self.spec.measure.fabric_bytes_max
            self.buffer = torch.zeros(max(ceiling, *arms.buckets()) // 4 + 1)
            self.sizes[n] = fabric_sizes(
                ceiling,
                self.spec.measure.budget_s,
                lambda size: all_reduce_row(self.buffer, size, self.groups[n], n, 0),
                lambda key, value: self.control.agree(f"fabric/{n}/{key}", value, lead=lead),
            )

    def _rounds(self, trials: tuple[Trial, ...]) -> None:
        pace = None
        if self.rank == 0 and trials:
            blocks = round_blocks(self.plan, trials, self.folder.index, 0)
            pace = Pace(
                self.spec.measure, [self.step_ns[b.trial.world_size] for b in blocks if b.arm in STEP_ARMS]
            )
        begin, number, go = time.monotonic(), 0, bool(trials)
        while go:
            steps, lead_in = self.control.agree(
                f"steps/{number}", pace.block_steps() if pace else None, lead=self.rank == 0
            )
            blocks = round_blocks(self.plan, trials, self.folder.index, number)
            for index, block in enumerate(blocks):
                if self.rank == 0:
                    self._progress(
                        f"round {number + 1}", time.monotonic() - begin, pace, number + index / len(blocks)
                    )
                self._block(block, steps, lead_in)
            number += 1
            more = pace.go_on(number, time.monotonic() - begin) if pace else None
            go = bool(self.control.agree(f"go/{number}", more, lead=self.rank == 0))

    def _block(self, block: Block, steps: int, lead_in: int) -> None:
        if self.rank == 0:
            self.control.start(block.id, conductor=True)
        if block.runs_on(self.rank):
            self.stage = f"{block.arm} at world size {block.trial.world_size}, round {block.round}"
            self.control.start(block.id, conductor=False)
            self.faults.begin(block)
            try:
                self._run_block(block, steps, lead_in)
            finally:
                self.faults.end()
            self.control.finish(block.id, 1 if block.arm == BARE_ONE else block.trial.world_size)
        if self.rank == 0:
            self.control.finished(block.id)

    def _run_block(self, block: Block, steps: int, lead_in: int) -> None:
        n = block.trial.world_size
        arms = self.arms[n]
        if block.arm != BARE_ONE and n > 1:
            dist.barrier(arms.group)
        rows: list[Any] = []
        collectives: list[list[list[int]]] = []
        with Usage() as usage:
            if block.arm in (REPLAY, FABRIC):
                lead_in, steps = 0, 0
                for sizes in self._exchanges(block, arms):
                    dist.barrier(arms.group)
                    begin = now_ns()
                    collectives.append(
                        [all_reduce_row(self.buffer, size, arms.group, n, i) for i, size in enumerate(sizes)]
                    )
                    rows.append([begin, now_ns()])
                    steps += 1
            else:
                loop = arms.loop(block.arm, detailed=block.detailed)
                step = loop.plain if block.arm == PLAIN else loop.stamped
                take = arms.take(block.arm) if block.detailed else None
                for index in range(-lead_in, steps):
                    row = step()
                    taken = take(loop.forward_end_ns) if take else None
                    if index >= 0:
                        rows.append(row)
                        if taken is not None:
                            collectives.append(taken)
        self.recorder.block(
            {
                "id": block.id,
                "round": block.round,
                "world_size": n,
                "arm": block.arm,
                "detailed": block.detailed,
                "solo_rank": block.solo_rank,
                "batch": block.trial.batch,
                "accumulation": self.spec.accumulation_steps,
                "lead_in": lead_in,
                "steps": steps,
            },
            rows,
            collectives,
            usage,
        )

    def _exchanges(self, block: Block, arms: Arms) -> list[list[int]]:
        if block.arm == REPLAY:
            return [arms.buckets()] * 3
        return [
            [size] for size in self.sizes[block.trial.world_size] for _ in range(4 if size <= 2**16 else 1)
        ]

    def _progress(self, stage: str, elapsed_s: float, pace: Pace | None, rounds: float = 0.0) -> None:
        if self.rank != 0:
            return
        left = pace.seconds_left(rounds, elapsed_s) if pace else None
        write_json(
            self.folder.progress,
            {"stage": stage, "rounds": rounds, "elapsed_s": round(elapsed_s, 1), "left_s": left},
            indent=None,
        )
