"""Where a step's batches come from. A block begins with as many batches ready as its arm left.

While a block runs, the loaders of other ranks and arms would go on filling their queues. They would take cores from
the rank that is measured, and their own next block would begin with batches that no step had to wait for. So data
workers stop at a gate, between two samples, when a block ends, and go on from there. If another arm left more or fewer
batches ready than this one did, batches are discarded or made before the block begins.

In a data worker the dataset is wrapped so that its samples pass the gate one by one and every batch carries the time it
took to make.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import signal
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from scaling.errors import InputError
from scaling.settings.run import Data, Spec
from scaling.settings.timeouts import LOADER
from scaling.settings.topology import CPU
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import Clock, now_ns
from scaling.worker.data.workload import Workload, find
from scaling.worker.parallel.torch_private import tensors_in


class Gate:
    """Shared by the training process and its workers: whether they may continue, and how many batches each made."""

    def __init__(self, workers: int) -> None:
        self.made = multiprocessing.RawArray(ctypes.c_int64, max(1, workers))
        self._shut = multiprocessing.RawValue(ctypes.c_bool, False)
        self._opened = multiprocessing.Event()
        self._opened.set()
        self._begin: tuple[int, int] | None = None
        self._held_ns = 0

    def open(self) -> None:
        """Let workers continue."""
        self._shut.value = False
        self._opened.set()

    def shut(self) -> None:
        """Stop workers before their next sample."""
        self._opened.clear()
        self._shut.value = True

    def sample(self) -> None:
        """In a worker, before each sample: wait while the gate is shut. A batch's first sample starts its time."""
        if self._shut.value and get_worker_info() is not None:
            begin = now_ns()
            self._opened.wait()
            self._held_ns += now_ns() - begin if self._begin else 0
        if self._begin is None:
            self._begin = (now_ns(), _cpu_ns())

    def batch(self) -> tuple[int, int]:
        """In a worker, after each batch: its wall and CPU time, ns, without the wait at the gate."""
        assert self._begin is not None
        wall, cpu = now_ns() - self._begin[0] - self._held_ns, _cpu_ns() - self._begin[1]
        self._begin, self._held_ns = None, 0
        worker = get_worker_info()
        if worker is not None:
            self.made[worker.id] += 1
        return wall, cpu


class Timed(Dataset[Any]):
    """A dataset whose samples pass the gate one by one."""

    def __init__(self, dataset: Any, gate: Gate) -> None:
        self._dataset, self._gate = dataset, gate
        self._many: Callable[[list[int]], list[Any]] | None = getattr(dataset, "__getitems__", None)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if self._many is not None:
            self._gate.sample()
            return self._many(indices)
        return [self._sample(index) for index in indices]

    def _sample(self, index: int) -> Any:
        self._gate.sample()
        return self._dataset[index]


class Stream(IterableDataset[Any]):
    """An iterable dataset whose samples pass the gate; it starts again at its end."""

    def __init__(self, dataset: Any, gate: Gate) -> None:
        self._dataset, self._gate = dataset, gate

    def __iter__(self) -> Iterator[Any]:
        while True:
            samples, some = iter(self._dataset), False
            while True:
                self._gate.sample()
                try:
                    sample = next(samples)
                except StopIteration:
                    break
                some = True
                yield sample
            if not some:
                raise RuntimeError("the dataset came to its end without a sample")


def collated(collate: Callable[[list[Any]], Any], gate: Gate, samples: list[Any]) -> tuple[Any, int, int]:
    """A batch of samples, and the wall and CPU time that it took, ns."""
    batch = collate(samples)
    return (batch, *gate.batch())


def end_with_parent(parent: int, _worker: int) -> None:
    """In a worker: ask for SIGKILL when the training process (pid `parent`) dies (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    served = multiprocessing.get_start_method() == "forkserver"  # the fork server is the parent then
    if os.getppid() != parent and not served:  # it died before this call
        os.kill(os.getpid(), signal.SIGKILL)


def _cpu_ns() -> int:
    """CPU time: in a worker of all its threads, in the training process of the calling thread only."""
    return time.thread_time_ns() if get_worker_info() is None else time.process_time_ns()


class Shards(Sampler[int]):
    """One rank's share of a dataset at the current world size, epoch after epoch, each shuffled anew.

    Sub-groups of one world size read the same samples, since each is a separate training; so do the ranks of a tensor
    group (`tensor`: how many), since each computes a part of every layer.
    """

    def __init__(self, dataset: Any, *, rank: int, seed: int, tensor: int = 1) -> None:
        self._dataset, self._rank, self._seed, self._tensor = dataset, rank, seed, tensor
        self.world_size = rank + 1

    def __iter__(self) -> Iterator[int]:
        stream = functools.cache(self._stream)
        while True:
            yield next(stream(self.world_size))

    def _stream(self, world_size: int) -> Iterator[int]:
        readers = max(1, world_size // self._tensor)
        sampler: DistributedSampler[Any] = DistributedSampler(
            self._dataset, readers, self._rank // self._tensor % readers, seed=self._seed
        )
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from sampler


BATCHES = 4
"""Number of synthetic batches, made once and used in turn."""
FILL_S = 10
"""Longest time that a block waits until as many batches are ready as its arm left."""
POLL_S = 5e-3
TRIES = 3
"""Number of fetches whose mean is the time of a fetch with a ready batch."""

UNKNOWN = (-1, -1)


class NoBatchError(RuntimeError):
    """A data worker raised, died, or gave no batch in time."""


class Feed:
    """A few synthetic batches in turn. There is nothing to wait for."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = itertools.cycle(batches)
        sizes = [sum(t.numel() * t.element_size() for t in tensors_in(batch)) for batch in batches]
        self.held_bytes = sum(sizes)
        """Memory of all its batches."""
        self.batch_bytes = max(sizes, default=0)
        """Memory of one of them: a training holds that too."""

    def fetch(self) -> Any:
        """The next batch, on the host."""
        return next(self._batches)

    def prepare(self, arm: Hashable, world_size: int) -> None:
        """Before a block: get as many batches ready as the arm's last block left at its end."""

    def resume(self) -> None:
        """The block begins: let data workers run."""

    def pause(self, arm: Hashable) -> None:
        """The block has ended: stop data workers, so that nothing runs beside the next block."""

    def cost(self) -> tuple[int, int]:
        """Mean wall and CPU time of making a batch since the last call, ns; (-1, -1) if none was made."""
        return UNKNOWN

    def fed_ns(self, clock: Clock, load: Callable[[Any], Any]) -> int:  # noqa: ARG002
        """Duration of a fetch whose batch is ready, with `load`, ns; -1 without a loader."""
        return -1

    def close(self) -> None:
        """End the data workers."""


class Loader(Feed):
    """An endless DataLoader over a dataset. Its workers can be stopped and its ready batches counted."""

    def __init__(
        self,
        dataset: Any,
        data: Data,
        *,
        batch: int,
        rank: int,
        seed: int,
        pin: bool,
        timeout_s: float,
        tensor: int = 1,
    ) -> None:
        """`batch`: samples of one fetch. `tensor`: ranks that read the same. The workers start at the first fetch."""
        self.held_bytes = self.batch_bytes = 0  # what the loaders of a training hold as well
        self._workers = data.workers
        self._ahead = data.workers * data.prefetch
        self._gate = Gate(data.workers)
        stream = isinstance(dataset, IterableDataset)
        self._shards = None if stream else Shards(dataset, rank=rank, seed=seed, tensor=tensor)
        collate = getattr(dataset, "collate_fn", default_collate)
        self._loader: DataLoader[Any] = DataLoader(
            Stream(dataset, self._gate) if stream else Timed(dataset, self._gate),
            batch_size=batch,
            sampler=self._shards,
            num_workers=data.workers,
            prefetch_factor=data.prefetch if data.workers else None,
            collate_fn=functools.partial(collated, collate, self._gate),
            pin_memory=pin,
            drop_last=True,
            timeout=round(timeout_s, 1) if data.workers else 0,
            worker_init_fn=functools.partial(end_with_parent, os.getpid()),
        )
        self._batches: Any = None
        self._delivered = 0
        self._costs: list[tuple[int, int]] = []
        self._levels: dict[Hashable, int] = {}

    def fetch(self) -> Any:
        """The next batch; waits for it."""
        if self._batches is None:
            self._batches = iter(self._loader)
        try:
            batch, wall_ns, cpu_ns = next(self._batches)
        except Exception as error:
            if not self._workers:
                raise  # the dataset raised it, in this process
            lines = str(error).strip().splitlines() or [type(error).__name__]
            if lines[0].startswith("Caught "):  # the text of a worker's traceback
                raise NoBatchError(f"in a data worker: {lines[-1]}") from error
            raise NoBatchError(f"no batch from the data workers: {lines[0]}") from error
        self._delivered += 1
        self._costs.append((wall_ns, cpu_ns))
        return batch

    def prepare(self, arm: Hashable, world_size: int) -> None:
        """Discard batches, or wait for more, until as many are ready as the arm left. The first time, do nothing."""
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
        """Let the workers continue."""
        self._gate.open()

    def pause(self, arm: Hashable) -> None:
        """Stop the workers before their next sample, and remember how many batches are ready."""
        self._gate.shut()
        self._levels[arm] = self._ready()

    def cost(self) -> tuple[int, int]:
        """Mean wall and CPU time that data workers took for a batch since the last call, ns."""
        costs, self._costs = self._costs, []
        if not costs:
            return UNKNOWN
        wall, cpu = (sum(column) // len(costs) for column in zip(*costs, strict=True))
        return wall, cpu

    def fed_ns(self, clock: Clock, load: Callable[[Any], Any]) -> int:
        """Without workers every fetch makes its batch, so only `load` is timed."""
        tries = min(TRIES, self._fill(self._ahead)) if self._workers else TRIES
        spans: list[list[int]] = []
        with clock.window(2 * tries):
            for _ in range(tries):
                batch = None if self._workers else self.fetch()
                begin = clock.stamp()
                load(self.fetch() if batch is None else batch)
                spans.append([begin, clock.stamp()])
        times = [end - begin for begin, end in map(clock.resolve, spans)]
        return sum(times) // len(times) if times else -1

    def close(self) -> None:
        """End the workers."""
        self._gate.open()
        if self._workers and self._batches is not None:
            self._batches._shutdown_workers()  # noqa: SLF001  # as its destructor does, but at a known time
        self._batches = None

    def _ready(self) -> int:
        """Number of ready batches, in the order of delivery: batch k comes from worker k modulo their number."""
        batches_made, first = self._gate.made, self._delivered
        ready = itertools.takewhile(
            lambda k: batches_made[k % self._workers] > k // self._workers, range(first, first + self._ahead)
        )
        return sum(1 for _ in ready)

    def _fill(self, level: int) -> int:
        """Let the workers make batches until `level` are ready. Returns how many are ready."""
        self._gate.open()
        deadline = time.monotonic() + FILL_S
        while self._ready() < level and time.monotonic() < deadline:
            time.sleep(POLL_S)
        time.sleep(POLL_S)  # a batch that was just made is still in transit
        self._gate.shut()
        return self._ready()


def open_feed(
    spec: Spec, workload: Workload, batch: int, *, rank: int, device: Accelerator, tensor: int = 1
) -> Feed:
    """A feed of batches of `batch` samples, the same for each `tensor` ranks. InputError for no dataset."""
    if spec.data.target is None:
        generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + rank // tensor)
        return Feed([device.stage(workload.make_batch(batch, generator)) for _ in range(BATCHES)])
    return Loader(
        find_dataset(spec.data),
        spec.data,
        batch=batch,
        rank=rank,
        seed=spec.seed,
        pin=spec.data.pin_memory and device.type != CPU,
        timeout_s=LOADER * spec.measure.step_timeout_s,
        tensor=tensor,
    )


def find_dataset(data: Data) -> Any:
    """Import the target and call it. InputError says what is missing."""
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
