"""The part that runs in a data worker, and the gate at which it stops while another arm or rank is measured.

A dataset is wrapped so that its samples pass the gate one by one and every batch carries the time it took to make.

Which samples of a dataset a rank reads.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import multiprocessing
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from scaling.worker.accelerator.clock import now_ns


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


class Collate:
    """Makes a batch of samples and adds the time it took."""

    def __init__(self, collate: Callable[[list[Any]], Any], gate: Gate) -> None:
        self._collate, self._gate = collate, gate

    def __call__(self, samples: list[Any]) -> tuple[Any, int, int]:
        """(batch, wall ns, CPU ns)."""
        batch = self._collate(samples)
        return (batch, *self._gate.batch())


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
        streams: dict[int, Iterator[int]] = {}
        while True:
            n = self.world_size
            if n not in streams:
                streams[n] = self._stream(n)
            yield next(streams[n])

    def _stream(self, world_size: int) -> Iterator[int]:
        readers = max(1, world_size // self._tensor)
        sampler: DistributedSampler[Any] = DistributedSampler(
            self._dataset, readers, self._rank // self._tensor % readers, seed=self._seed
        )
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from sampler
