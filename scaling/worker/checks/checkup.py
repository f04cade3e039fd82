"""A launch that checks its ranks instead of training: every stage on every rank, each written down as it ends."""

from __future__ import annotations

import dataclasses
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from scaling.checkup import SCHEMA, RankCheck
from scaling.files import write_json
from scaling.plan import Plan, Trial
from scaling.store import LaunchFolder
from scaling.worker.checks import ceilings, pairs
from scaling.worker.checks.facts import facts
from scaling.worker.checks.parity import Parity
from scaling.worker.checks.steps import Bench
from scaling.worker.clock import now_ns
from scaling.worker.control import Control
from scaling.worker.devices import open_device
from scaling.worker.environment import describe
from scaling.worker.groups import make_groups
from scaling.worker.offsets import offset_ns
from scaling.worker.precision import Precision
from scaling.worker.progress import Progress
from scaling.worker.workload import Workload, build

OTHERS_S = 30.0
"""What rank 0 grants the others on top of what it needed itself."""


class Checkup:
    """The worker's side of `scaling doctor`, on one rank."""

    def __init__(self, plan: Plan, folder: LaunchFolder, trials: tuple[Trial, ...]) -> None:
        self.plan, self.spec, self.folder = plan, plan.spec, folder
        self.trial = max(trials, key=lambda t: t.world_size)
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.host = self.spec.topology.host_of(self.rank)
        self.stage = "start"
        self.device = open_device(self.spec, rank=self.rank, local_rank=int(os.environ["LOCAL_RANK"]))
        timeout = timedelta(seconds=self.spec.measure.step_timeout_s)
        dist.init_process_group("gloo", timeout=timeout)
        everybody = dist.distributed_c10d._get_default_store()  # noqa: SLF001
        self.control = Control(
            dist.PrefixStore(f"launch/{folder.index}", everybody),  # type: ignore[attr-defined]
            self.rank,
        )
        self.groups = make_groups(
            {self.world: [tuple(range(self.world))]},
            rank=self.rank,
            world=self.world,
            backend=self.spec.topology.backend,
            timeout=timeout,
        )
        self.found = RankCheck(schema=SCHEMA, rank=self.rank, host=self.host, stage=self.stage, facts={})
        self._progress = Progress(folder.progress, self.spec.measure, rank=self.rank)
        self._begin = time.monotonic()

    def run(self) -> None:
        """All stages. What the model itself does wrong is a finding, not a failure."""
        torch.set_num_threads(self.spec.threads)
        self._enter("machine")
        precision = Precision(self.spec.precision, self.device.type)
        workload = self._build()
        env = describe(self.spec, self.rank, self.host, workload.module, self.device)
        write_json(self.folder.env(self.rank), env)
        self._note(facts=facts(self.device))
        self._enter("clocks")
        offset, bound = self._wall_offset()
        self._note(clock_offset_ns=offset, clock_bound_ns=bound)
        self._enter("links between ranks")
        self._note(pairs=self._pairs())
        self._enter("ceilings")
        formats = self.device.formats()
        self._note(ceilings=ceilings.measure(self.device, formats))
        self._enter("the model's step")
        self._model(workload, precision)
        del workload  # parity makes its own, each as large
        self.device.release_memory()
        self._enter("precision parity")
        if self.found.model_error is None:
            self._parity(formats)
        self._enter("end")
        dist.destroy_process_group()

    def _build(self) -> Workload:
        torch.manual_seed(self.spec.seed)
        return build(self.spec.model.target, self.spec.model.args)

    def _model(self, workload: Workload, precision: Precision) -> None:
        workload.module.to(self.device.torch_device)
        bench = Bench(self.plan, self.trial, workload, self.device, precision, self.rank)
        try:
            self._note(work=bench.work())
            self._note(times=bench.times())
        except Exception as error:  # noqa: BLE001  # whatever a model may raise
            devices = sorted({str(p.device) for p in workload.module.parameters()})
            text = str(error).strip().split("\n")[0]
            self._note(model_error=f"{type(error).__name__}: {text} (parameters on {', '.join(devices)})")

    def _parity(self, formats: tuple[str, ...]) -> None:
        begin = time.monotonic()
        parity = Parity(
            self._build, self.device, seed=self.spec.seed, batch=self.trial.batch, word=self._word
        )
        for record in parity.record(formats):
            self._note(parity=(*self.found.parity, record))
        self._note(parity_left_out=parity.left_out)
        # Devices are not all as fast: a slower one's words nobody hears.
        self._word("waiting for the others", expected_s=OTHERS_S + time.monotonic() - begin)

    def _pairs(self) -> tuple[Any, ...]:
        if self.world == 1:
            return ()
        return pairs.measure(
            self.rank,
            self.world,
            device=self.device,
            group=self.groups[self.world].data,
            backend=self.spec.topology.backend,
            turn=self._turn,
            local_rank=self._local_rank,
        )

    def _turn(self, index: int) -> None:
        """The pairs before are through."""
        self.control.meet(f"pair/{index}", self.world)
        self._word(f"{index} pairs done")

    def _local_rank(self, peer: int) -> int | None:
        topology = self.spec.topology
        return topology.local_of(peer) if topology.host_of(peer) == self.host else None

    def _wall_offset(self) -> tuple[int, int]:
        """The wall clock of this rank against rank 0's, by way of the monotonic ones that the ping-pongs compare."""
        offset, bound = offset_ns(self.rank, range(self.world), None)
        ahead = time.time_ns() - now_ns()
        if self.rank == 0:
            self.control.say("wall", ahead)
        return offset + ahead - int(self.control.hear("wall")), bound

    def _enter(self, stage: str) -> None:
        """All ranks together, so that each stage meets the same load everywhere."""
        self.stage = stage
        self.control.meet(f"stage/{stage}", self.world)
        self._note(stage=stage)
        self._progress(stage, elapsed_s=time.monotonic() - self._begin)

    def _word(self, what: str, expected_s: float | None = None) -> None:
        """How far the stage is."""
        elapsed_s = time.monotonic() - self._begin
        self._progress(f"{self.stage}, {what}", elapsed_s=elapsed_s, expected_s=expected_s)

    def _note(self, **found: Any) -> None:
        """Keep what was found, on disk at once."""
        self.found = dataclasses.replace(self.found, **found)
        write_json(self.folder.check(self.rank), self.found, indent=None)
