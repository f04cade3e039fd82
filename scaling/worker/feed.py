"""Where a step's batches come from, and how a block finds them: as its own arm left them.

While a block runs, the other ranks' and the other arms' loaders would go on filling their queues: they
would take the cores of the rank that is measured, and their own next block would begin with batches
that nobody had to wait for. So the workers stop at a gate when a block ends, between two samples, and
go on from there; and where another arm left more or fewer batches ready than this one did, they are
thrown away or made before the block begins.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate
from torch.utils.data.distributed import DistributedSampler

from scaling.errors import InputError
from scaling.spec import Data, Spec
from scaling.worker.clock import Clock
from scaling.worker.devices import Device
from scaling.worker.gate import Collate, Gate, Stream, Timed, end_with_parent
from scaling.worker.workload import Workload, find

BATCHES = 4
"""Made-up batches, made once and used in turn."""
FILL_S = 10
"""So long at most a block waits for its batches to be as many as its arm left."""
POLL_S = 5e-3
TRIES = 3
"""Fetches of which a fed one's time is the mean."""

UNKNOWN = (-1, -1)

PATIENCE = 0.9
"""Of `step_timeout_s`: a rank gives its data workers up before its peers, who wait for it, give up the rank."""


class NoBatchError(RuntimeError):
    """A data worker raised, died, or gave no batch in time."""


class Feed:
    """Made-up batches, the same few in turn: nothing to wait for."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = itertools.cycle(batches)

    def fetch(self) -> Any:
        """The next batch, on the host."""
        return next(self._batches)

    def prepare(self, arm: Hashable, world_size: int) -> None:
        """Before a block: have as many batches ready as the arm's block before had at its end."""

    def resume(self) -> None:
        """The block begins."""

    def pause(self, arm: Hashable) -> None:
        """The block is over: nothing may run beside the next one."""

    def cost(self) -> tuple[int, int]:
        """Mean wall and CPU time of making a batch since it was last asked for, ns; (-1, -1): nothing was made."""
        return UNKNOWN

    def fed_ns(self, clock: Clock, load: Callable[[Any], Any]) -> int:  # noqa: ARG002
        """What a fetch takes whose batch is there, `load` included, ns; -1: no loader."""
        return -1

    def close(self) -> None:
        """End what it started."""


class Loader(Feed):
    """A DataLoader over a Dataset, without end, whose workers can be stopped and whose queue can be counted."""

    def __init__(
        self, dataset: Any, data: Data, *, batch: int, rank: int, seed: int, pin: bool, timeout_s: float
    ) -> None:
        """`batch`: samples of one fetch. The workers start at the first fetch."""
        self._workers = data.workers
        self._ahead = data.workers * data.prefetch
        self._gate = Gate(data.workers)
        stream = isinstance(dataset, IterableDataset)
        self._shards = None if stream else Shards(dataset, rank=rank, seed=seed)
        self._loader: DataLoader[Any] = DataLoader(
            Stream(dataset, self._gate) if stream else Timed(dataset, self._gate),
            batch_size=batch,
            sampler=self._shards,
            num_workers=data.workers,
            prefetch_factor=data.prefetch if data.workers else None,
            collate_fn=Collate(getattr(dataset, "collate_fn", default_collate), self._gate),
            pin_memory=pin,
            drop_last=True,
            timeout=timeout_s if data.workers else 0,
            worker_init_fn=functools.partial(end_with_parent, os.getpid()),
        )
        self._batches: Any = None
        self._taken = 0
        self._costs: list[tuple[int, int]] = []
        self._levels: dict[Hashable, int] = {}

    @property
    def pids(self) -> list[int]:
        """Of the workers that run."""
        return [worker.pid for worker in getattr(self._batches, "_workers", [])]

    def fetch(self) -> Any:
        """The next batch; waits for it."""
        if self._batches is None:
            self._batches = iter(self._loader)
        try:
            batch, wall_ns, cpu_ns = next(self._batches)
        except Exception as error:
            if not self._workers:
                raise  # the dataset's own
            lines = str(error).strip().splitlines() or [type(error).__name__]
            if lines[0].startswith("Caught "):  # a worker's own traceback, as text
                raise NoBatchError(f"in a data worker: {lines[-1]}") from error
            raise NoBatchError(f"no batch from the data workers: {lines[0]}") from error
        self._taken += 1
        self._costs.append((wall_ns, cpu_ns))
        return batch

    def prepare(self, arm: Hashable, world_size: int) -> None:
        """Throw away, or wait for, what there is more or less of than the arm left; nothing the first time."""
        if self._shards is not None:
            self._shards.world_size = world_size
        level = self._levels.get(arm)
        if level is not None:
            while self._ready() > level:
                self.fetch()
            if self._ready() < level:
                self._fill(level)
        self._costs.clear()

    def resume(self) -> None:
        """Let the workers go on."""
        self._gate.open()

    def pause(self, arm: Hashable) -> None:
        """Stop the workers before their next sample, and remember how many batches are ready."""
        self._gate.shut()
        self._levels[arm] = self._ready()

    def cost(self) -> tuple[int, int]:
        """See Feed."""
        costs, self._costs = self._costs, []
        if not costs:
            return UNKNOWN
        wall, cpu = (sum(column) // len(costs) for column in zip(*costs, strict=True))
        return wall, cpu

    def fed_ns(self, clock: Clock, load: Callable[[Any], Any]) -> int:
        """See Feed. Without workers every fetch makes its batch: what is left of it is the copy."""
        tries = min(TRIES, self._fill(self._ahead)) if self._workers else TRIES
        spans: list[list[int]] = []
        with clock.window(2 * tries):
            for _ in range(tries):
                made = None if self._workers else self.fetch()
                begin = clock.stamp()
                load(self.fetch() if made is None else made)
                spans.append([begin, clock.stamp()])
        times = [end - begin for begin, end in map(clock.resolve, spans)]
        return sum(times) // len(times) if times else -1

    def close(self) -> None:
        """End the workers."""
        self._gate.open()
        if self._workers and self._batches is not None:
            self._batches._shutdown_workers()  # noqa: SLF001  # what its destructor does, at a known time
        self._batches = None

    def _ready(self) -> int:
        """Batches that a fetch would find, in the order of delivery: batch k is worker k's, modulo their number."""
        made, first = self._gate.made, self._taken
        if not self._workers:
            return 0
        ready = itertools.takewhile(
            lambda k: made[k % self._workers] > k // self._workers, range(first, first + self._ahead)
        )
        return sum(1 for _ in ready)

    def _fill(self, level: int) -> int:
        """Let the workers make batches until `level` are ready; how many are."""
        self._gate.open()
        deadline = time.monotonic() + FILL_S
        while self._ready() < level and time.monotonic() < deadline:
            time.sleep(POLL_S)
        time.sleep(POLL_S)  # a batch that was made just now is on its way
        self._gate.shut()
        return self._ready()


class Shards(Sampler[int]):
    """One rank's share of a dataset at the world size that is set, epoch after epoch, each shuffled anew.

    Sub-groups of one world size read the same: each is a training of its own.
    """

    def __init__(self, dataset: Any, *, rank: int, seed: int) -> None:
        self._dataset, self._rank, self._seed = dataset, rank, seed
        self.world_size = rank + 1

    def __iter__(self) -> Iterator[int]:
        streams: dict[int, Iterator[int]] = {}
        while True:
            n = self.world_size
            if n not in streams:
                streams[n] = self._stream(n)
            yield next(streams[n])

    def _stream(self, world_size: int) -> Iterator[int]:
        sampler: DistributedSampler[Any] = DistributedSampler(
            self._dataset, world_size, self._rank % world_size, seed=self._seed
        )
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from sampler


def open_feed(spec: Spec, workload: Workload, batch: int, *, rank: int, device: Device) -> Feed:
    """Batches of `batch` samples; InputError when the dataset cannot be had."""
    if spec.data.target is None:
        generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + rank)
        return Feed([device.stage(workload.make_batch(batch, generator)) for _ in range(BATCHES)])
    return Loader(
        find_dataset(spec.data),
        spec.data,
        batch=batch,
        rank=rank,
        seed=spec.seed,
        pin=spec.data.pin_memory and device.type == "cuda",
        timeout_s=PATIENCE * spec.measure.step_timeout_s,
    )


def find_dataset(data: Data) -> Any:
    """Import the target and call it; InputError says what is missing."""
    dataset = find("data._target_", str(data.target), "a Dataset")(**data.args)
    if isinstance(dataset, IterableDataset):
        return dataset
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"data._target_={data.target}: returned {type(dataset).__name__}, a torch Dataset is expected: "
            "__getitem__ and __len__, or an IterableDataset"
        )
    if len(dataset) == 0:
        raise InputError(f"data._target_={data.target}: has no samples")
    return dataset
