"""One launch: every world size as a sub-group of the same processes, measured in interleaved rounds."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from scaling.files import write_json
from scaling.plan import Block, Plan, Trial, round_blocks
from scaling.records import PLAIN, STEP_ARMS
from scaling.store import LaunchFolder
from scaling.worker.arms import Arms
from scaling.worker.blocks import LEAD_IN_BYTES, BlockRunner
from scaling.worker.checks.roofline import note_roofline
from scaling.worker.clock import now_ns
from scaling.worker.control import Control
from scaling.worker.devices import open_device, require
from scaling.worker.environment import describe
from scaling.worker.exchange import Exchange
from scaling.worker.feed import Feed, open_feed
from scaling.worker.groups import free, make_groups
from scaling.worker.inject import Faults
from scaling.worker.offsets import offset_ns
from scaling.worker.options import shaped
from scaling.worker.pace import EXCHANGE_SHARE, Pace, bunch
from scaling.worker.precision import Precision
from scaling.worker.prepare import Ready, fits, warm_up
from scaling.worker.progress import COMPILE_S, Progress
from scaling.worker.recorder import Recorder
from scaling.worker.workload import Workload, build

MEMORY_SCHEMA = 1


class Launch:
    """The worker's side of a launch, on one rank."""

    def __init__(self, plan: Plan, folder: LaunchFolder, trials: tuple[Trial, ...]) -> None:
        self.plan, self.spec, self.folder = plan, plan.spec, folder
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ["LOCAL_RANK"])
        self.host = self.spec.topology.host_of(self.rank)
        self.trials = tuple(sorted(trials, key=lambda t: t.world_size))
        self.baseline = plan.baseline(trials)
        self.device = open_device(self.spec, rank=self.rank, local_rank=local_rank)
        for precision in (self.spec.precision, *self.spec.vary.precision):
            require(self.device, precision)
        timeout = timedelta(seconds=self.spec.measure.step_timeout_s)
        dist.init_process_group("gloo", timeout=timeout)  # the control plane, whatever carries the gradients
        everybody = dist.distributed_c10d._get_default_store()  # noqa: SLF001
        store = dist.PrefixStore(f"launch/{folder.index}", everybody)  # type: ignore[attr-defined]
        self.control = Control(store, self.rank)
        self.progress = Progress(folder.progress, self.spec.measure, rank=self.rank)
        self.parts = {
            t.world_size: plan.sub_groups(t.world_size, self.world) for t in (*trials, *self.baseline)
        }
        pairings = {-k: pairs for k, pairs in enumerate(plan.pairings(self.world), 1)}
        self.groups = make_groups(
            self.parts | pairings,
            rank=self.rank,
            world=self.world,
            backend=self.spec.topology.backend,
            timeout=timeout,
        )
        self.exchange = Exchange(self.device)
        self.precision = Precision(self.spec.precision, self.device.type)
        self.faults = Faults(self.spec.inject, rank=self.rank, first_on_host=local_rank == 0)
        self.feeds: dict[int, Feed] = {}
        self.ready: dict[int, Ready] = {}
        self.peaks: dict[int, int] = {}
        self.stage = "start"

    def open(self) -> Workload:
        """The model on its device, and what it runs on written down."""
        torch.set_num_threads(self.spec.threads)
        torch.manual_seed(self.spec.seed)
        # Measured by cases, each case has or has not its activations computed again.
        throughout = dataclasses.replace(self.spec, checkpointing=False) if self.spec.by_case else self.spec
        workload = shaped(build(self.spec.model.target, self.spec.model.args), throughout)
        workload.module.to(self.device.torch_device)
        write_json(
            self.folder.env(self.rank),
            describe(self.spec, self.rank, self.host, workload.module, self.device),
        )
        self.progress("warm-up")
        return workload

    def close(self) -> None:
        """Together with all ranks."""
        self.stage = "end"
        self.control.meet("end", self.world)
        dist.destroy_process_group()

    def run(self) -> None:
        """Set up, warm up, measure rounds until the pace says stop, write down."""
        workload = self.open()
        note_roofline(self.plan, self.folder, workload, self.device, self.precision, self.rank)
        fitting = []
        for trial in (*self.baseline, *self.trials):
            self.stage = f"warm-up of world size {trial.world_size}"
            self.progress(self.stage)
            if self._prepare(trial, workload):
                fitting.append(trial)
        self.recorder = Recorder(self.folder.rank(self.rank), self.head())
        self.blocks = BlockRunner(
            device=self.device,
            groups=self.groups,
            exchange=self.exchange,
            recorder=self.recorder,
            collectives=self.spec.measure.collectives,
        )
        self.clock("begin")
        self._rounds(*(tuple(t for t in some if t in fitting) for some in (self.trials, self.baseline)))
        self.progress("end")
        self.clock("end")
        # Only where all went well: what a failing rank started dies with it, and waiting here for a data worker
        # that hangs would let its peers, who wait for this rank, speak first.
        self.faults.close()
        for feed in self.feeds.values():
            feed.close()
        self.recorder.close()
        self.note_memory()
        self.close()

    def clock(self, at: str) -> None:
        """Note this rank's clock against rank 0's. Ranks that share rank 0's kernel share its clock."""
        self.stage = f"clock offsets at the {at}"
        self.control.meet(f"clock/{at}", self.world)  # all idle: nobody sits long in a receive
        offset, bound = offset_ns(self.rank, range(self.world), None)
        self.recorder.note("clock", at=at, offset_ns=offset, bound_ns=bound, time_ns=now_ns())

    def note_memory(self) -> None:
        """memory-<r>.json: of each world size the peak in its plain blocks and what its communicator holds.

        And how well the device's clock was tied to the host's (0: it is the host's).
        """
        record = {
            "schema": MEMORY_SCHEMA,
            "rank": self.rank,
            "peak_bytes": max(self.peaks.values(), default=self.device.peak_bytes()),
            "world_sizes": {
                str(n): {
                    "peak_bytes": self.peaks.get(n),
                    "communicators_bytes": ready.arms.communicator_bytes,
                }
                for n, ready in self.ready.items()
            },
            "device_clock_bound_ns": self.device.clock.bound_ns,
        }
        write_json(self.folder.memory(self.rank), record)

    def head(self) -> dict[str, Any]:
        """The fields of a rank file's first line."""
        groups = {str(t.world_size): list(range(t.world_size)) for t in self.trials}
        groups |= {str(group.key): list(group.ranks) for group in self.groups.values()}
        return {
            "rank": self.rank,
            "host": self.host,
            "hostname": os.uname().nodename,
            "launch": self.folder.index,
            "world": self.world,
            "groups": groups,
            "warmup": {str(n): ready.warmup_steps for n, ready in self.ready.items()},
            "cores": _cores_of_the_host(),
            "fed_ns": {str(n): ready.fed_ns for n, ready in self.ready.items()},
        }

    def _prepare(self, trial: Trial, workload: Workload) -> bool:
        """Wrap, try one local step, agree that it fits, warm up. False when some rank ran out of memory."""
        n = trial.world_size
        participants = sum(map(len, self.parts[n]))
        if self.rank < participants:
            arms = Arms(
                spec=self.spec,
                variant=self.plan.variant,
                trial=trial,
                workload=workload,
                groups=self.groups,
                device=self.device,
                precision=self.precision,
                faults=self.faults,
                feed=functools.partial(self._feed, workload),
                meet=functools.partial(self._built, n, participants),
            )
            if self.control.all_true(f"fits/{n}", participants, fits(arms)):
                self.ready[n] = warm_up(
                    trial,
                    arms,
                    group=self.groups[n],
                    participants=participants,
                    device=self.device,
                    control=self.control,
                    exchange=self.exchange,
                    measure=self.spec.measure,
                    rank=self.rank,
                    word=self._word,
                )
                if n == self.world:
                    self._connect_pairs()
            else:
                del arms  # its buckets and batches, before the cache is emptied
                self.device.release_memory()
                free(self.groups, n)
        if self.rank == 0:
            self.control.say(f"ready/{n}", n in self.ready)
        fits_all = bool(self.control.hear(f"ready/{n}"))
        if not fits_all and self.rank == 0:
            write_json(self.folder.out_of_memory(n), {"world_size": n})
        return fits_all

    def _built(self, n: int, participants: int) -> None:
        """Wait for the slowest to have what it feeds: a wrapper is made together, and a collective waits less long."""
        self.control.meet(f"built/{n}", participants)
        self._word("first step", COMPILE_S if self.spec.compile else None)

    def _word(self, what: str, expected_s: float | None = None) -> None:
        """How far the warm-up is."""
        self.progress(f"{self.stage}, {what}", expected_s=expected_s)

    def _connect_pairs(self) -> None:
        """The first message of a group makes its connection: not in a block that is timed."""
        for key in sorted((key for key in self.groups if key < 0), reverse=True):
            self.exchange.once(self.groups[key], LEAD_IN_BYTES)

    def _feed(self, workload: Workload, batch: int) -> Feed:
        """One a batch size: world sizes that share it share its workers."""
        if batch not in self.feeds:
            self.feeds[batch] = open_feed(self.spec, workload, batch, rank=self.rank, device=self.device)
        feed = self.feeds[batch]
        feed.resume()  # another world size may have left it paused
        return feed

    def _rounds(self, trials: tuple[Trial, ...], baseline: tuple[Trial, ...]) -> None:
        pace = None
        if self.rank == 0 and trials:
            blocks = round_blocks(self.plan, trials, self.folder.index, 0, baseline, self.world)
            pace = Pace(
                self.spec.measure,
                [self.ready[b.trial.world_size].step_ns for b in blocks if b.arm in STEP_ARMS],
                bunch=bunch(self.spec),
            )
        begin, number, go = time.monotonic(), 0, bool(trials)
        while go:
            steps, lead_in = self.control.agree(
                f"steps/{number}", pace.block_steps() if pace else None, lead=self.rank == 0
            )
            blocks = round_blocks(self.plan, trials, self.folder.index, number, baseline, self.world)
            for index, block in enumerate(blocks):
                if self.rank == 0:
                    elapsed_s = time.monotonic() - begin
                    rounds = number + index / len(blocks)
                    self.progress(
                        f"round {number + 1}",
                        rounds,
                        elapsed_s,
                        pace.seconds_left(rounds, elapsed_s) if pace else None,
                        self._expected_s(block, steps + lead_in),
                    )
                self._block(block, steps, lead_in, pace)
            number += 1
            more = pace.go_on(number, time.monotonic() - begin) if pace else None
            go = bool(self.control.agree(f"go/{number}", more, lead=self.rank == 0))

    def _block(self, block: Block, steps: int, lead_in: int, pace: Pace | None) -> None:
        if self.rank == 0:
            self.control.start(block.id, conductor=True)
        if block.runs_on(self.rank):
            self.stage = f"{block.arm} at world size {block.trial.world_size}, round {block.round}"
            self.control.start(block.id, conductor=False)
            ready = self.ready[block.trial.world_size]
            self.faults.begin(block)
            self.device.reset_peak()
            try:
                step_ns = self.blocks.run(block, ready.arms, ready.sweep, steps=steps, lead_in=lead_in)
            finally:
                self.faults.end()
            if block.arm == PLAIN:
                n = block.trial.world_size
                self.peaks[n] = max(self.peaks.get(n, 0), self.device.peak_bytes())
            if pace is not None:
                pace.note(block, step_ns)
            self.control.finish(block.id, block.participants)
        if self.rank == 0:
            self.control.finished(block.id)

    def _expected_s(self, block: Block, steps: int) -> float:
        """About what a block takes; at least that, where it is messages of many sizes."""
        if block.arm in STEP_ARMS:
            return steps * self.ready[block.trial.world_size].step_ns / 1e9
        return self.spec.measure.budget_s * EXCHANGE_SHARE


def _cores_of_the_host() -> int:
    """Cores that the ranks of this host have together: the launcher's, which may give each rank a part of its own."""
    try:
        return len(os.sched_getaffinity(os.getppid()) | os.sched_getaffinity(0))
    except OSError:
        return len(os.sched_getaffinity(0))
