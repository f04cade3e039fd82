"""What every program of a rank needs: who it is, its device, its folder, and the means to agree with other ranks.

A user's loop (probe) has a Session. A launch, a run by cases and a checkup have a LaunchSession, which torchrun starts.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scaling.errors import let_go
from scaling.records.checkup import DOCTOR
from scaling.records.files import add_line, write_json
from scaling.records.format import SCHEMA, ClockRecord, HeadRecord
from scaling.records.paths import LaunchFolder
from scaling.settings.plan import Plan, Trial
from scaling.settings.run import Spec
from scaling.settings.timeouts import collective_s
from scaling.settings.topology import CPU
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.devices import open_device, require
from scaling.worker.accelerator.memory import keep_freed
from scaling.worker.data.workload import Workload, build
from scaling.worker.models.options import shaped
from scaling.worker.parallel.groups import make_groups
from scaling.worker.parallel.torch_private import default_store, set_timeout
from scaling.worker.session.control import Control, compare_hosts
from scaling.worker.session.environment import machine, recorded
from scaling.worker.session.progress import Progress

ENVIRONMENT_SCHEMA, MEMORY_SCHEMA = 1, 1
CLOCKS_S = 60.0
"""In a long launch clocks are compared this often: they drift with their machines' temperature."""
CLOCKS_SHARE = 0.05
"""The most of a launch's time that comparisons may take; hosts take turns."""


class Session:
    """One rank of `world`, on `host`, that records into `folder`."""

    def __init__(
        self, *, rank: int, world: int, host: int, folder: LaunchFolder, device: Accelerator, control: Control
    ) -> None:
        self.rank, self.world, self.host = rank, world, host
        self.folder, self.device, self.control = folder, device, control

    @property
    def lead(self) -> bool:
        """Whether this is rank 0, which decides for all ranks."""
        return self.rank == 0

    def head(self, groups: Mapping[int, Sequence[int]], **fields: Any) -> HeadRecord:
        """The first line of this rank's file; `fields`: its optional fields."""
        return HeadRecord(
            schema=SCHEMA,
            rank=self.rank,
            host=self.host,
            hostname=os.uname().nodename,
            launch=self.folder.index,
            world=self.world,
            numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),  # 0: unknown
            groups={key: tuple(ranks) for key, ranks in groups.items()},
            **fields,
        )

    def record_environment(
        self, spec: Spec, module: torch.nn.Module, tokens_per_sample: int | None = None, **overrides: Any
    ) -> None:
        """Write what this rank runs on, but no variables that may hold secrets. Rank 0 stands for the run.

        `overrides` replace entries of it.
        """
        parameters = [p for p in module.parameters() if p.requires_grad]
        environment: dict[str, Any] = {
            "schema": ENVIRONMENT_SCHEMA,
            "rank": self.rank,
            "host": self.host,
            **machine(self.device),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "device": spec.topology.device,
            "backend": spec.topology.backend,
            "parameters": sum(p.numel() for p in parameters),
            "parameter_tensors": len(parameters),
            "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
            "buffers_bytes": sum(b.numel() * b.element_size() for b in module.buffers()),
            "tokens_per_sample": tokens_per_sample,
            "environment": recorded(spec.env),
            **overrides,
        }
        if self.lead:
            write_json(self.folder.env(self.rank), environment, private=True)
        else:
            add_line(self.folder.envs(self.host), environment)


class LaunchSession(Session):
    """A rank that torchrun started, with all groups of its launch."""

    def __init__(
        self, plan: Plan, folder: LaunchFolder, trials: tuple[Trial, ...], plan_digest: str = ""
    ) -> None:
        """Open the device and join the other ranks. RuntimeError where the run cannot use the device."""
        self.plan, self.spec, self.plan_digest = plan, plan.spec, plan_digest
        self.trials = tuple(sorted(trials, key=lambda trial: trial.world_size))
        self.baseline = plan.baseline(trials)
        self.first_on_host = os.environ["LOCAL_RANK"] == "0"
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        device = open_device(self.spec, rank=rank, local_rank=int(os.environ["LOCAL_RANK"]))
        if device.type == CPU and not self.spec.kind.by_cases:  # cases may have a limit, which returns memory
            keep_freed()
        if self.spec.task != DOCTOR:  # the doctor reports what a device lacks
            for precision in (self.spec.precision, *self.spec.vary.precision):
                require(device, precision)
        timeout = timedelta(seconds=collective_s(None, self.spec.measure.step_timeout_s))
        # The control plane is Gloo's, whatever carries the gradients.
        dist.init_process_group("gloo", timeout=timeout)
        at = default_store()
        store = dist.PrefixStore(f"launch/{folder.index}", at)  # type: ignore[attr-defined]
        super().__init__(
            rank=rank,
            world=world,
            host=self.spec.topology.host_of(rank),
            folder=folder,
            device=device,
            control=Control(store, rank, waiting=device.waiting),
        )
        self.parts = {t.world_size: plan.sub_groups(t.world_size, world) for t in (*trials, *self.baseline)}
        """Sub-groups of each world size, which run at the same time."""
        pairings = {-k: pairs for k, pairs in enumerate(plan.pairings(world), 1)}
        strategies = (*plan.spec.strategies, *([plan.variant] if plan.variant else []))
        self._sharded = [strategy for strategy in strategies if strategy.parallel.sharded]
        axes = {
            key: mesh.axes()[axis]
            for mesh in (strategy.parallel.mesh(n) for n in self.parts for strategy in self._sharded)
            for axis, key in mesh.keys().items()
            if key not in self.parts
        }
        self.groups = make_groups(
            self.parts | pairings | axes,
            rank=rank,
            world=world,
            backend=self.spec.topology.backend,
            timeout=timeout,
            host_of=self.spec.topology.host_of,
        )
        self.progress = Progress(folder.progress, rank=rank)
        self.stage = "start"
        """What this rank is doing, for progress, errors and stacks."""
        self._begin = self._compared_s = time.monotonic()
        self._comparing_s = 0.0
        torch.set_num_threads(self.spec.threads)

    def enter(self, stage: str) -> None:
        self.stage = stage
        self.progress(stage, elapsed_s=self.elapsed_s)

    def say(self, what: str, expected_s: float | None = None) -> None:
        """Report how far the stage is; `expected_s`: about how long the next report takes."""
        self.progress(f"{self.stage}, {what}", elapsed_s=self.elapsed_s, expected_s=expected_s)

    def timed(self, key: str, step_s: float) -> None:
        """From here on a step takes about rank 0's `step_s`, so hangs are noticed sooner. All ranks call this."""
        self._expect(float(self.control.agree(f"timed/{key}", step_s)))

    def untimed(self) -> None:
        """From here on nobody knows how long a step takes."""
        self._expect(None)

    def _expect(self, step_s: float | None) -> None:
        self.progress.step_s = step_s
        limit = timedelta(seconds=collective_s(step_s, self.spec.measure.step_timeout_s))
        groups = [group for each in self.groups.values() for group in (each.control, each.data)]
        for group in (dist.group.WORLD, *groups):
            if group is not None and dist.get_backend(group) in ("nccl", "gloo"):  # torch knows only theirs
                set_timeout(limit, group)

    def open_workload(self) -> Workload:
        """Build the model, shape it as the run's options say, move it to the device, and record the environment."""
        torch.manual_seed(self.spec.seed)
        # In a run by cases, each case switches checkpointing on or off.
        checkpointing = self.spec.checkpointing and not self.spec.kind.by_cases
        throughout = dataclasses.replace(self.spec, checkpointing=checkpointing)
        workload = shaped(build(self.spec.model.target, self.spec.model.args), throughout)
        workload.module.to(self.device.torch_device)
        self.record_environment(self.spec, workload.module, workload.tokens_per_sample)
        self.stage = "warm-up"
        self.progress(self.stage)
        return workload

    @property
    def elapsed_s(self) -> float:
        """Seconds since this rank joined."""
        return time.monotonic() - self._begin

    def compare_clocks(self, at: str) -> ClockRecord:
        """Compare this rank's clock with rank 0's, `at` the begin, the end or between. Ranks of a host share it."""
        if self.spec.task != DOCTOR:
            self.stage = f"clock offsets at the {at}"
        self.control.meet(f"clock/{at}", self.world)  # no rank has to sit long in a receive
        self.device.barrier(dist.group.WORLD)
        begin = time.monotonic()
        hosts = [self.spec.topology.host_of(rank) for rank in range(self.world)]
        record = compare_hosts(at, self.rank, hosts, self.control)
        self._compared_s = time.monotonic()
        self._comparing_s = self._compared_s - begin
        return record

    @property
    def clocks_due(self) -> bool:
        """Whether clocks were compared so long ago that they should be again."""
        return time.monotonic() - self._compared_s > max(CLOCKS_S, self._comparing_s / CLOCKS_SHARE)

    def launch_head(
        self, *, warmup: Mapping[int, int], fed_ns: Mapping[int, int], detailed: Sequence[int] = ()
    ) -> HeadRecord:
        """The first line of this rank's file; `warmup` and `fed_ns` are by world size. `detailed`: as in HeadRecord."""
        groups: dict[int, Sequence[int]] = {t.world_size: range(t.world_size) for t in self.trials}
        groups |= {group.key: group.ranks for group in self.groups.values()}
        for n in self.parts:
            for strategy in self._sharded if self.rank < n else ():
                groups |= strategy.parallel.mesh(n).made_by_torch(self.rank, strategy.fsdp)
        return self.head(
            groups,
            warmup=dict(warmup),
            cores=cores_of_host(),
            fed_ns=dict(fed_ns),
            detailed=tuple(detailed),
            plan_digest=self.plan_digest,
        )

    def record_memory(
        self, accounts: Mapping[tuple[int, int], Mapping[str, int | None]] | None = None
    ) -> None:
        """Write what a rank held of memory and for what (analysis.results.PeakMemory).

        `accounts`: by world size and number of the strategy. It also says how well the device's clock was tied to the
        host's (0: it is the host's clock).
        """
        accounts = accounts or {}
        peaks = [account["peak_bytes"] for account in accounts.values() if account["peak_bytes"] is not None]
        strategies = [
            {str(n): dict(account) for (n, which), account in accounts.items() if which == k}
            for k in range(len(self.spec.strategies))
        ]
        record = {
            "schema": MEMORY_SCHEMA,
            "rank": self.rank,
            "peak_bytes": max(peaks, default=self.device.peak_bytes()),
            "world_sizes": strategies[0],
            "strategies": strategies,
            "device_clock_bound_ns": self.device.clock.bound_ns,
        }
        add_line(self.folder.memories(self.host), record)

    def close(self) -> None:
        """End together with all ranks."""
        self.stage = "end"
        self.control.meet("end", self.world)
        dist.destroy_process_group()


def cores_of_host() -> int:
    """Cores that the ranks of this host share: those of the launcher, which may give each rank a part."""
    cores = os.sched_getaffinity(0)
    with let_go(OSError):
        cores = cores | os.sched_getaffinity(os.getppid())
    return len(cores)
