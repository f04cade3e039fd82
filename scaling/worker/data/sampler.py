"""Which samples of a dataset a rank reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler


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
