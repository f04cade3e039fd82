"""The arms that a loop does not run by itself, on its live model: a rank alone, no DDP, DDP alone, the wire alone.

Rounds of them are numbered -1, -2, ...; what they change is put back afterwards.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.plan import bare_ranks
from scaling.records import BARE_ALL, BARE_ONE, DDP_SOLO, FABRIC, REPLAY
from scaling.spec import DEFAULT_BUCKET_MB
from scaling.worker.clock import resolve_collective
from scaling.worker.control import Control
from scaling.worker.devices import Device
from scaling.worker.exchange import ALL_REDUCE, Exchange, Message, stamps_of
from scaling.worker.groups import Group
from scaling.worker.own.agreement import Agreement
from scaling.worker.own.phases import Phases, step_fields
from scaling.worker.probe import SoloProbe, bucket_bytes
from scaling.worker.recorder import Usage

Step = Callable[[torch.nn.Module], Any]
"""One training step, forward to optimizer, with the module it is given."""

WARMUP, LEAD_IN = 4, 1
REPLAYS = 3
SWEEP = tuple(1024 * 4**k for k in range(7))
"""Bytes; 1 KiB to 4 MiB."""
SMALL_BYTES, SMALL_REPEATS = 2**16, 4
PATIENCE_S = 300.0
"""So long at most a rank waits for another: compiling, or a few steps of a rank alone, may take minutes. Peers that
went on training instead wait in their next collective meanwhile, by default 10 minutes at most on NCCL."""


class SharedStepError(RuntimeError):
    """The step communicates even without DDP, so no rank can take it alone; the same on every rank."""


class Baseline:
    """Baselines of one probe; each call of `run` adds rounds."""

    def __init__(
        self, ddp: DistributedDataParallel, agreement: Agreement, phases: Phases, device: Device, record: Any
    ) -> None:
        """A collective: makes a group of one rank, and one on Gloo where DDP's own is none.

        Not before all are there; Aborted where one has stopped, TimeoutError where one does not come.
        """
        self._ddp, self._phases, self._device, self._record = ddp, phases, device, record
        self._rank, self._world = agreement.rank, agreement.world
        self._control = Control(agreement.store, agreement.rank, patience_s=PATIENCE_S)
        self._control.meet("baseline/open", self._world)
        self._control.check()  # one that no longer waited is counted all the same
        members = agreement.members
        solo = dist.new_group([members[agreement.rank]], use_local_synchronization=True)
        control = ddp.process_group
        if dist.get_backend(control) != "gloo":
            control = dist.new_group(members, backend="gloo", use_local_synchronization=True)
        self._solo = solo
        self._group = Group(
            key=self._world,
            ranks=tuple(members),
            control=control,
            data=ddp.process_group,
        )
        self._exchange = Exchange(device)
        self._rounds = 0

    def run(self, step: Step, *, rounds: int, steps: int, compiled: bool) -> None:
        """Measure; the caller restores what steps change. Aborted, TimeoutError as above, with nothing under way."""
        self._control.check()
        cap_mb = self._ddp.bucket_bytes_cap / 2**20
        wrapper = DistributedDataParallel(
            self._ddp.module,
            process_group=self._solo,
            bucket_cap_mb=None if cap_mb == DEFAULT_BUCKET_MB else cap_mb,  # as in scaling.worker.arms
            gradient_as_bucket_view=self._ddp.gradient_as_bucket_view,
        )
        bare: Any = torch.compile(self._ddp.module) if compiled else self._ddp.module
        solo: Any = torch.compile(wrapper) if compiled else wrapper
        groups = list(dict.fromkeys((self._ddp.process_group, dist.group.WORLD)))
        before = _collectives(groups)
        for _ in range(WARMUP):
            step(bare)
        if _collectives(groups) != before:
            raise SharedStepError("the step has collectives of its own, and a rank alone would wait in them")
        for _ in range(WARMUP):
            step(solo)
        alone_probe = SoloProbe(wrapper, self._device)
        buckets = bucket_bytes(self._ddp)
        sizes = sorted({*SWEEP, max(buckets, default=0) // 4 * 4})
        self._exchange.reserve(max(sizes))
        sweep: list[list[Message]] = [
            [(ALL_REDUCE, size)] for size in sizes for _ in range(SMALL_REPEATS if size <= SMALL_BYTES else 1)
        ]
        replay: list[list[Message]] = [[(ALL_REDUCE, size) for size in buckets]] * REPLAYS
        try:
            for _ in range(rounds):
                self._rounds += 1
                for index, (arm, alone) in enumerate(self._order()):
                    with self._turn(f"{self._rounds}/{index}", alone) as mine:
                        if not mine:
                            continue
                        about = {"id": -(self._rounds * 1000 + index), "arm": arm, "solo_rank": alone}
                        if arm in (REPLAY, FABRIC):
                            self._messages(about, replay if arm == REPLAY else sweep)
                        elif arm == DDP_SOLO:
                            self._steps(about, step, solo, steps, alone_probe)
                        else:
                            self._steps(about, step, bare, steps, None)
        finally:
            self._exchange = Exchange(self._device)  # its buffers may be as large as what the training lacks

    def _order(self) -> list[tuple[str, int]]:
        """(arm, rank that runs alone or -1) of this round, the same on every rank."""
        order = [(arm, -1) for arm in (BARE_ALL, DDP_SOLO, REPLAY, FABRIC)]
        order += [(BARE_ONE, rank) for rank in bare_ranks((self._world,), self._rounds - 1)]
        random.Random(f"own/{self._rounds}").shuffle(order)
        return order

    @contextlib.contextmanager
    def _turn(self, key: str, alone: int) -> Iterator[bool]:
        """Together, or one rank while the others sleep on the store. Whether it is this rank's turn."""
        self._control.meet(f"baseline/{key}/begin", self._world)
        yield alone in (-1, self._rank)
        self._control.meet(f"baseline/{key}/end", self._world)

    def _steps(
        self, about: dict[str, Any], step: Step, module: torch.nn.Module, steps: int, probe: SoloProbe | None
    ) -> None:
        clock, phases = self._device.clock, self._phases
        begins: list[int] = []
        marks, collectives = [], []
        with (
            probe.taking() if probe else contextlib.nullcontext() as take,
            clock.window((steps + LEAD_IN) * 64),
            phases.also(module),
        ):
            for index in range(-LEAD_IN, steps):
                if index == 0:
                    usage = Usage().__enter__()
                begins.append(clock.stamp())
                phases.begin(marking=True)
                step(module)
                phases.inside = False
                if index >= 0:
                    marks.append(phases.marks)
                if take is not None and index >= 0:
                    collectives.append(take(phases.forward_end_ns))
            begins.append(clock.stamp())
            self._device.synchronize()
            usage.__exit__(None, None, None)
        times = clock.resolve(begins[LEAD_IN:])
        rows = []
        for i, row in enumerate(marks):
            at = clock.resolve([token for _, token in row])
            found = step_fields(
                times[i], [(kind, t) for (kind, _), t in zip(row, at, strict=True)], times[i + 1]
            )
            if found is None:
                raise RuntimeError(
                    "no backward through the module that the step was given; it has to use its argument"
                )
            rows.append(found)
        if probe is not None:
            about = {**about, "parameters": probe.parameters(times[:-1])}
        self._write(
            about, rows, [[resolve_collective(clock, row) for row in each] for each in collectives], usage
        )

    def _messages(self, about: dict[str, Any], exchanges: list[list[Message]]) -> None:
        clock = self._device.clock
        with clock.window(stamps_of(exchanges)), Usage() as usage:
            done = [self._exchange.run(self._group, messages) for messages in exchanges]
        rows = [clock.resolve(row) for row, _ in done]
        self._write(
            about, rows, [[resolve_collective(clock, row) for row in each] for _, each in done], usage
        )

    def _write(
        self,
        about: dict[str, Any],
        rows: Sequence[Sequence[int]],
        collectives: Sequence[Sequence[Sequence[int]]],
        usage: Usage,
    ) -> None:
        fields = {
            **about,
            "round": -self._rounds,
            "detailed": about["arm"] in (DDP_SOLO, REPLAY, FABRIC),
            "accumulation": max(1, self._phases.forwards),
            "lead_in": LEAD_IN,
            "steps": len(rows),
        }
        self._record(fields, rows, collectives, usage)


def _collectives(groups: Sequence[Any]) -> list[int]:
    """How many each group has had; -1 where its backend does not count."""
    counts = []
    for group in groups:
        try:
            counts.append(int(group._get_sequence_number_for_group()))  # noqa: SLF001
        except (RuntimeError, AttributeError):
            counts.append(-1)
    return counts
