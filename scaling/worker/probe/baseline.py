"""Run the arms that a user's loop does not run itself, on its live model.

They are: one rank alone, all ranks without DDP, DDP over one rank, and messages without training. Their rounds are
numbered -1, -2, ...

Save and restore all that training steps change: weights, buffers, gradients, optimizers, random generators.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import raise_from_signal
from scaling.records.format import AnyStepRow, BlockRecord, CollectiveRow, PlainRow, RecordedBlock
from scaling.settings.schedule import (
    BARE_ALL,
    BARE_ONE,
    DDP_SOLO,
    FABRIC,
    REPLAY,
    Message,
    bare_ranks,
    messages,
)
from scaling.worker.accelerator.clock import resolve_collective
from scaling.worker.accelerator.devices import random_states, set_random_states
from scaling.worker.measure.exchange import ALL_REDUCE, Exchange, stamps_of
from scaling.worker.measure.probe import SoloProbe
from scaling.worker.measure.recorder import Usage
from scaling.worker.parallel.ddp import bucket_bytes, settings_of, wrap
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.strategy import Detail
from scaling.worker.probe.marks import step_row
from scaling.worker.probe.phases import Phases
from scaling.worker.probe.track import Sink
from scaling.worker.session.control import Aborted
from scaling.worker.session.session import Session


class State:
    """A copy of the training's state on its devices, as large as weights, gradients and optimizer state together.

    Optimizers are not asked to load their state: that would cast tensors to the parameters' type and device, such as
    moments in fp32 or counts on the host.
    """

    def __init__(
        self, module: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer], others: Iterable[Any]
    ) -> None:
        """`others` have `state_dict` and `load_state_dict`, like a grad scaler or a schedule."""
        self._tensors = [_kept(tensor) for tensor in (*module.parameters(), *module.buffers())]
        self._gradients = [(parameter, _kept(parameter.grad)) for parameter in module.parameters()]
        self._optimizers = [
            (
                optimizer,
                {key: _kept(state) for key, state in optimizer.state.items()},
                [
                    (group["params"], {name: _kept(v) for name, v in group.items() if name != "params"})
                    for group in optimizer.param_groups
                ],
            )
            for optimizer in optimizers
        ]
        self._stateful = [(x, copy.deepcopy(x.state_dict())) for x in others]
        self._random = [(put, get()) for get, put in _generators()]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore everything, bit by bit. This can be done again, for instance where it failed half way."""
        for restored in self._tensors:
            restored()
        for parameter, restored in self._gradients:
            parameter.grad = restored()  # the same tensor object: DDP may keep its gradients in it
        for optimizer, states, groups in self._optimizers:
            _refilled(optimizer.state, states)
            for group, (parameters, values) in zip(optimizer.param_groups, groups, strict=True):
                _refilled(group, values)["params"] = parameters
        for thing, document in self._stateful:
            thing.load_state_dict(document)
        for put, state in self._random:
            put(state)


def _kept(value: Any) -> Callable[[], Any]:
    """Copy a value. Returns what gives it back as it was; tensors and dictionaries are the same objects as before."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach().clone()
        return lambda: value.copy_(tensor)
    if isinstance(value, dict):
        values = {name: _kept(each) for name, each in value.items()}
        return lambda: _refilled(value, values)
    copied = copy.deepcopy(value)
    return lambda: copy.deepcopy(copied)


def _refilled(into: Any, values: Mapping[Any, Callable[[], Any]]) -> Any:
    """A dictionary with these values alone, as they were."""
    restored = {name: value() for name, value in values.items()}
    into.clear()
    into.update(restored)
    return into


def _generators() -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How the state of each random generator is read and set."""
    numpy = sys.modules.get("numpy")  # a loop that does not use numpy has nothing to restore
    return [
        (torch.get_rng_state, torch.set_rng_state),
        (random_states, set_random_states),
        (random.getstate, random.setstate),
        *([(numpy.random.get_state, numpy.random.set_state)] if numpy else []),
    ]


Step = Callable[[torch.nn.Module], Any]
"""Runs one training step, forward to optimizer, with the given module."""

WARMUP, LEAD_IN = 4, 1
REPLAYS = 3
SWEEP = tuple(1024 * 4**k for k in range(7))
"""Bytes; 1 KiB to 4 MiB."""
SMALL_REPEATS = 4


class SharedStepError(RuntimeError):
    """The step communicates even without DDP, so no rank can run it alone. Raised on every rank."""


class Baseline:
    """The baselines of one probe; each call of `run` adds rounds."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        session: Session,
        members: Sequence[int],
        phases: Phases,
        record: Sink,
    ) -> None:
        """Makes, as a collective, a group of one rank, and a Gloo group where DDP's is not Gloo.

        `members`: the group's ranks in the default group. Waits for all of them first: Aborted where one has
        stopped, TimeoutError where one does not come.
        """
        self._ddp, self._phases, self._record = ddp, phases, record
        self._device, self._control = session.device, session.control
        self._rank, self._world = session.rank, session.world
        self._control.meet("baseline/open", self._world)
        self._control.check()  # a rank that stopped waiting is counted too
        self._solo = dist.new_group([members[session.rank]], use_local_synchronization=True)
        control = ddp.process_group
        if dist.get_backend(control) != "gloo":
            control = dist.new_group(members, backend="gloo", use_local_synchronization=True)
        self._group = Group(key=self._world, ranks=tuple(members), control=control, data=ddp.process_group)
        self._exchange = Exchange(self._device)
        self._rounds = 0
        self._number, self._arm, self._alone = 0, "", -1

    def run(self, others: Sequence[Any], step: Step, *, rounds: int, steps: int, compiled: bool) -> None:
        """Measure, and restore whatever steps change, and the state of `others`.

        Aborted and TimeoutError as above, with no block running.
        """
        state = State(self._ddp.module, self._phases.optimizers.values(), others)
        try:
            for parameter in self._ddp.parameters():
                parameter.grad = None
            self._measure(step, rounds, steps, compiled=compiled)
        finally:
            self._phases.inside = False
            try:
                state.restore()
            except Exception as error:  # noqa: BLE001  # half a state would spoil the training
                state.restore()
                raise_from_signal(error)

    def _measure(self, step: Step, rounds: int, steps: int, *, compiled: bool) -> None:
        self._control.check()
        wrapper = wrap(self._ddp.module, settings_of(self._ddp), self._solo)
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
        backend = dist.get_backend(self._ddp.process_group)
        sweep = [[message] for message in messages([ALL_REDUCE], sizes, backend, repeats=SMALL_REPEATS)]
        replay = [[Message(ALL_REDUCE, size) for size in buckets]] * REPLAYS
        with self._exchange.reserved(max(sizes)):
            for _ in range(rounds):
                self._rounds += 1
                for index, (arm, alone) in enumerate(self._order()):
                    with self._turn(f"{self._rounds}/{index}", alone) as mine:
                        if not mine:
                            continue
                        self._number, self._arm, self._alone = index, arm, alone
                        if arm in (REPLAY, FABRIC):
                            self._messages(replay if arm == REPLAY else sweep)
                        elif arm == DDP_SOLO:
                            self._steps(step, solo, steps, alone_probe)
                        else:
                            self._steps(step, bare, steps, Detail())

    def _order(self) -> list[tuple[str, int]]:
        """(arm, rank that runs alone or -1) of each block of this round, the same on every rank."""
        order = [(arm, -1) for arm in (BARE_ALL, DDP_SOLO, REPLAY, FABRIC)]
        order += [(BARE_ONE, rank) for rank in bare_ranks((self._world,), self._rounds - 1)]
        random.Random(f"own/{self._rounds}").shuffle(order)
        return order

    @contextlib.contextmanager
    def _turn(self, key: str, alone: int) -> Iterator[bool]:
        """Run a block together, or one rank while the others sleep on the store. Yields whether this rank runs."""
        self._control.meet(f"baseline/{key}/begin", self._world)
        yield alone in (-1, self._rank)
        self._control.meet(f"baseline/{key}/end", self._world)

    def _steps(self, step: Step, module: torch.nn.Module, steps: int, detail: Detail) -> None:
        clock, phases = self._device.clock, self._phases
        begins: list[int] = []
        marks, sent = [], []
        with detail.taking() as take, clock.window((steps + LEAD_IN) * 64), phases.also(module):
            for index in range(-LEAD_IN, steps):
                if index == 0:
                    usage = Usage().__enter__()
                begins.append(clock.stamp())
                phases.begin(marking=True)
                step(module)
                phases.inside = False
                if index >= 0:
                    marks.append(phases.marks)
                    sent.append(take(phases.forward_end_ns).collectives)
            begins.append(clock.stamp())
            self._device.synchronize()
            usage.__exit__(None, None, None)
        times = clock.resolve(begins[LEAD_IN:])
        rows = []
        for begin, end, row in zip(times, times[1:], marks, strict=False):
            at = clock.resolve([token for _, token in row])
            phases_row = step_row(begin, [(kind, t) for (kind, _), t in zip(row, at, strict=True)], end)
            if phases_row is None:
                raise RuntimeError(
                    "no backward through the module that the step was given; it has to use its argument"
                )
            rows.append(phases_row)
        collectives = [row for row in sent if row is not None]
        self._write(rows, collectives, usage, detail.parameters(times[:-1]))

    def _messages(self, exchanges: list[list[Message]]) -> None:
        clock = self._device.clock
        with clock.window(stamps_of(exchanges)), Usage() as usage:
            done = [self._exchange.run(self._group, messages) for messages in exchanges]
        rows = [PlainRow(*clock.resolve(row)) for row, _ in done]
        self._write(rows, [collectives for _, collectives in done], usage, [])

    def _write(
        self,
        rows: Sequence[AnyStepRow],
        collectives: Sequence[Sequence[CollectiveRow]],
        usage: Usage,
        parameters: list[tuple[int, int]],
    ) -> None:
        """Record the block; the stamps of `collectives` are still tokens."""
        clock = self._device.clock
        block = BlockRecord(
            id=-(self._rounds * 1000 + self._number),
            round=-self._rounds,
            world_size=self._world,
            arm=self._arm,
            detailed=self._arm in (DDP_SOLO, REPLAY, FABRIC),
            solo_rank=self._alone,
            batch=0,
            accumulation=max(1, self._phases.forwards),
            lead_in=LEAD_IN,
            steps=len(rows),
            parameters=parameters,
            **usage.fields(),
        )
        done = [[resolve_collective(clock, row) for row in each] for each in collectives]
        self._record(RecordedBlock(block=block, steps=rows, collectives=done))


def _collectives(groups: Sequence[Any]) -> list[int]:
    """Number of collectives that each group has run; -1 where its back end does not count."""
    counts = []
    for group in groups:
        try:
            counts.append(int(group._get_sequence_number_for_group()))  # noqa: SLF001
        except (RuntimeError, AttributeError):
            counts.append(-1)
    return counts


def why_not(error: Aborted | TimeoutError) -> str:
    """Which rank stopped and why, or what was waited for in vain."""
    if isinstance(error, TimeoutError):
        return str(error)
    record = json.loads(str(error))
    return f"rank {record['rank']} stopped ({record['message']})"
