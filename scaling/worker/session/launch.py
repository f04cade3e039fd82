"""One launch: every world size as a sub-group of the same processes, measured in interleaved rounds.

The feeds of a launch, by batch size and tensor degree, and what they hold of memory that a training would not.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

from scaling.records.files import write_json
from scaling.settings.plan import DETAILS, SWEEP, Trial
from scaling.settings.run import Spec
from scaling.settings.sample import Traffic
from scaling.settings.schedule import (
    ALONE,
    OF_NONE,
    PLAIN,
    PROBE,
    STEP_ARMS,
    Block,
    dropped_steps,
    messages,
    round_blocks,
)
from scaling.worker.accelerator.accelerator import Precision
from scaling.worker.checks.kernels import note_step
from scaling.worker.data.feed import Feed, open_feed
from scaling.worker.data.workload import Workload
from scaling.worker.measure.arms import Arms
from scaling.worker.measure.blocks import LEAD_IN_BYTES, BlockRunner
from scaling.worker.measure.exchange import Exchange
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.pace import EXCHANGE_SHARE, Efficiencies, Pace, block_steps, bunch
from scaling.worker.measure.prepare import Ready, fits, warm_up
from scaling.worker.measure.recorder import Recorder
from scaling.worker.parallel.groups import free
from scaling.worker.session.progress import COMPILE_S
from scaling.worker.session.rounds import Budget, Turn, run_rounds
from scaling.worker.session.session import LaunchSession


class Feeds:
    """World sizes with the same batch share a feed and its workers."""

    def __init__(self, session: LaunchSession, workload: Workload) -> None:
        self._session, self._workload = session, workload
        self._feeds: dict[tuple[int, int], Feed] = {}

    def of(self, batch: int, *, tensor: int) -> Feed:
        """The feed of a batch size, the same for each `tensor` ranks."""
        session = self._session
        if (batch, tensor) not in self._feeds:
            self._feeds[batch, tensor] = open_feed(
                session.spec, self._workload, batch, rank=session.rank, device=session.device, tensor=tensor
            )
        feed = self._feeds[batch, tensor]
        feed.resume()  # another world size may have left it paused
        return feed

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def memory(self, arms: Arms, peak: int | None) -> dict[str, int | None]:
        """What the training of a world size under a strategy holds, and the harness beside it, bytes.

        `peak`: of its plain blocks. The harness's buffers lie in memory in their own blocks alone. On a CPU it keeps
        batches that a training would not: these are not the training's, and its peak is told without them.
        """
        computed, harness_bytes = arms.strategy.computed(arms.optimizer), 0
        if not self._session.spec.topology.accelerated:
            batches_bytes = sum(feed.held_bytes for feed in self._feeds.values())
            harness_bytes = batches_bytes - arms.feed(PLAIN).batch_bytes
        return {
            "peak_bytes": None if peak is None else peak - harness_bytes,
            **{f"{name}_bytes": arms.held.get(name) for name in ("parameters", "gradients", "optimizer")},
            "activations_bytes": arms.activations_bytes,
            "unsharded_bytes": arms.unsharded_bytes or None,
            **{f"computed_{name}_bytes": size for name, size in computed.items()},
            "communicators_bytes": arms.communicator_bytes,
            "harness_bytes": harness_bytes,
        }


class Launch:
    """Measures the trials of a launch on one rank."""

    def __init__(self, session: LaunchSession) -> None:
        self._session, self._spec, self._content = session, session.spec, session.plan.content
        self._exchange = Exchange(session.device, session.groups)
        self._precision = Precision(session.spec.precision, session.device.type)
        self._optimizer: torch.optim.Optimizer | None = None
        self._faults = Faults(
            session.spec.inject,
            rank=session.rank,
            first_on_host=session.first_on_host,
            stall=session.device.stall,
        )
        self._ready: dict[tuple[int, int], Ready] = {}
        """By world size and strategy, where that fits into memory."""
        self._fitting: dict[int, list[int]] = {}
        """By world size, the strategies that fit into memory on all ranks."""
        self._whole: dict[int, list[int]] = {}
        """By world size, the strategies under which a rank has room for the whole model's training."""
        self._peaks: dict[tuple[int, int], int] = {}
        self._efficiencies = Efficiencies()

    def run(self) -> None:
        """Set up, warm up, measure rounds until the pace says stop, and write what is left to write."""
        session = self._session
        workload = session.open_workload()
        if self._content.has(DETAILS):
            note_step(session, workload, self._precision)
        self._budget, self._feeds = Budget(session), Feeds(session, workload)
        asked = (*session.baseline, *session.trials)
        fitting = []
        for index, trial in enumerate(asked):
            session.enter(f"warm-up of world size {trial.world_size}")
            limit_s = self._budget.warmup_left_s() / (len(asked) - index)
            if self._prepare(trial, workload, limit_s):
                fitting.append(trial)
        trials, baseline = (
            tuple(t for t in some if t in fitting) for some in (session.trials, session.baseline)
        )
        firsts = self._of_first()
        if trials:
            self._content = self._budget.fitted(trials, firsts, self._traffic())
        head = session.launch_head(
            warmup={n: ready.warmup_steps for n, ready in firsts.items()},
            fed_ns={n: ready.fed_ns for n, ready in firsts.items()},
            detailed=self._content.detailed or (),
        )
        self._recorder = recorder = Recorder(session.folder.rank(session.rank), head)
        self._blocks = BlockRunner(
            device=session.device,
            groups=session.groups,
            exchange=self._exchange,
            recorder=recorder,
            collectives=self._spec.measure.collectives,
            backend=self._spec.topology.backend,
            several=len(self._spec.strategies) > 1,
        )
        recorder.note(session.compare_clocks("begin"))
        if trials:
            self._rounds(trials, baseline)
        session.progress("end")
        recorder.note(session.compare_clocks("end"))
        recorder.end()
        # Only after a success. On a failure, what this rank started ends with it; waiting here for a data worker that
        # hangs would let its peers, which wait for this rank, report first.
        self._faults.close()
        self._feeds.close()
        recorder.close()
        memory = {k: self._feeds.memory(ready.arms, self._peaks.get(k)) for k, ready in self._ready.items()}
        session.record_memory(memory)
        session.close()

    def _of_first(self) -> dict[int, Ready]:
        """By world size, that of the first strategy that fits."""
        return {n: ready for (n, _), ready in reversed(self._ready.items())}

    def _traffic(self) -> dict[int, Traffic]:
        """What this rank will record, by world size; of strategies side by side, the one that sends most often."""
        kinds, backend = range(len(self._spec.measure.collectives)), self._spec.topology.backend
        return {
            n: Traffic(
                calls=max(len(candidate.arms.wire()) for (m, _), candidate in self._ready.items() if m == n),
                swept=len(messages(kinds, ready.sweep, backend)),
                tensors=len(list(ready.arms.module.parameters())),
            )
            for n, ready in self._of_first().items()
        }

    def _prepare(self, trial: Trial, workload: Workload, limit_s: float) -> bool:
        """Prepare each strategy. False where none fits into the memory of every rank."""
        session, n, strategies = self._session, trial.world_size, self._spec.strategies
        participants = sum(map(len, session.parts[n]))
        for k, spec in enumerate(strategies if session.rank < participants else ()):
            self._prepare_strategy(trial, workload, k, spec, limit_s / len(strategies))
        fitting = [k for k in range(len(strategies)) if (n, k) in self._ready]
        if session.rank < participants and not fitting:
            free(session.groups, n)
        whole = [k for k in fitting if self._ready[n, k].arms.whole]
        self._fitting[n], self._whole[n] = session.control.agree(f"ready/{n}", [fitting, whole])
        if not self._fitting[n] and session.lead:
            write_json(session.folder.out_of_memory(n), {"world_size": n})
        return bool(self._fitting[n])

    def _prepare_strategy(self, trial: Trial, workload: Workload, k: int, spec: Spec, limit_s: float) -> None:
        """Wrap, try one local step, agree that it fits, warm up. Not ready where some rank ran out of memory."""
        session, control, n = self._session, self._session.control, trial.world_size
        participants = sum(map(len, session.parts[n]))
        content = self._content.less(SWEEP) if k else self._content
        if self._optimizer is None:
            self._optimizer = workload.optimizer(workload.module.parameters())
        arms = Arms(
            spec=spec,
            variant=session.plan.variant,
            trial=trial,
            workload=workload,
            optimizer=self._optimizer,
            groups=session.groups,
            device=session.device,
            precision=self._precision,
            faults=self._faults,
            feed=functools.partial(self._feeds.of, tensor=spec.parallel.mesh(max(session.parts)).tensor),
            content=content,
        )
        session.say("first step", COMPILE_S if self._spec.compile else None)
        whole = control.all_true(f"fits/{n}/{k}", participants, fits(arms))
        # Ranks that share the parameters may have room where one alone has none. Only their own steps tell.
        if not whole and n > 1 and spec.parallel.sharded and session.plan.variant is None:
            arms.without_whole()
        if whole or not arms.whole:
            self._ready[n, k] = warm_up(
                trial,
                arms,
                session=session,
                participants=participants,
                exchange=self._exchange,
                content=content,
                limit_s=limit_s,
                key=f"{n}/{k}",
            )
            if n == session.world and not k:
                self._connect_pairs()
        else:
            self._optimizer.state.clear()  # it may have run out of memory half way
            session.device.release_memory()

    def _connect_pairs(self) -> None:
        """Send a first message in each pairing, since that connects the group: not in a block that is timed."""
        groups = self._session.groups
        with self._exchange.reserved(LEAD_IN_BYTES):
            for key in sorted((key for key in groups if key < 0), reverse=True):
                self._exchange.once(groups[key], LEAD_IN_BYTES)

    def _rounds(self, trials: tuple[Trial, ...], baseline: tuple[Trial, ...]) -> None:
        session, measure, budget = self._session, self._spec.measure, self._budget
        content, detailed = self._content, self._content.detailed
        plan = dataclasses.replace(session.plan, content=content)
        fitting = tuple(t for t in trials if content.holds(t.world_size))
        beside = plan.baseline(fitting) if fitting != trials else baseline

        def blocks(number: int) -> tuple[Block, ...]:
            planned = round_blocks(plan, fitting, session.folder.index, number, beside, session.world)
            return tuple(b for b in planned if self._has_room(b))

        pace, lengths, took = None, None, [0]
        if session.lead:
            pace = Pace(
                measure,
                self._efficiencies,
                budget_s=budget.rounds_s,
                limit_s=budget.limit_s,
                kind=lambda number: detailed is None or number in detailed,
            )
            arms = [block for block in blocks(0) if block.arm in STEP_ARMS]
            took = [self._ready_of(block).step_ns for block in arms]
            least = [dropped_steps(self._spec, block.arm, 0) for block in arms]
            lengths = block_steps(
                measure, took, dropped=least, bunch=bunch(self._spec), budget_s=budget.rounds_s
            )
        most, lead_in = session.control.agree("steps", lengths)
        session.timed("rounds", max(took) / 1e9)

        def turns(number: int, share: float) -> list[Turn]:
            steps = max(1, int(most * share))

            def steps_of(block: Block) -> int:
                """A detailed step is replayed from the end of the one before it, so it takes two."""
                return max(2, steps) if block.arm == PROBE and block.detailed else steps

            return [
                Turn(
                    id=block.id,
                    participants=block.participants,
                    mine=block.runs_on(session.rank),
                    stage=f"{block.arm} at world size {block.trial.world_size}, round {block.round}",
                    run=functools.partial(self._block, block, steps_of(block), lead_in),
                    expected_s=self._expected_s(block, steps_of(block), lead_in) if session.lead else 0.0,
                )
                for block in blocks(number)
            ]

        run_rounds(session, pace, turns, note=self._recorder.note)

    def _has_room(self, block: Block) -> bool:
        """Whether the ranks have memory for what the block runs."""
        n, of_none = block.trial.world_size, block.arm in OF_NONE
        fitting = self._fitting.get(n, [])
        strategy = fitting[0] if of_none and fitting else block.strategy
        return strategy in fitting and (block.arm not in ALONE or strategy in self._whole[n])

    def _ready_of(self, block: Block) -> Ready:
        """What a block runs; where no strategy is at work, that of the first one that fits."""
        n = block.trial.world_size
        return self._of_first()[n] if block.arm in OF_NONE else self._ready[n, block.strategy]

    def _block(self, block: Block, steps: int, lead_in: int) -> None:
        session, key = self._session, (block.trial.world_size, block.strategy)
        ready = self._ready_of(block)
        lead_in = dropped_steps(self._spec, block.arm, lead_in) if block.arm in STEP_ARMS else 0
        self._faults.begin(block)
        session.device.reset_peak()
        try:
            step_ns = self._blocks.run(block, ready.arms, ready.sweep, steps=steps, lead_in=lead_in)
        finally:
            self._faults.end()
        if block.arm == PLAIN:
            self._peaks[key] = max(self._peaks.get(key, 0), session.device.peak_bytes())
        if session.lead:
            self._efficiencies.note(block, step_ns)

    def _expected_s(self, block: Block, steps: int, lead_in: int) -> float:
        """About what a block takes, s; a lower bound where it sends messages of many sizes."""
        if block.arm in STEP_ARMS:
            steps += dropped_steps(self._spec, block.arm, lead_in)
            return steps * self._ready_of(block).step_ns / 1e9
        return self._spec.measure.budget_s * EXCHANGE_SHARE
