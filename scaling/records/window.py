"""The steps of a few blocks at a time, of all ranks, as frames.

A block of all ranks is the unit of every statistic, and a rank's file has its blocks one after the other. The reader
therefore takes the same few blocks from every file in turn (records.gathered makes columns of them).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.records.clock import Ints
from scaling.records.columns import BLOCK_NAMES
from scaling.records.gathered import Gathered, gather
from scaling.records.rank import Rank, Stored

WINDOW_ROWS = 400_000
"""Rows of steps and collectives in a window, or those of one block if it has more: about 70 MB of columns."""
BATCH_BYTES = 16 << 20
"""What is read of the files at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some blocks of a launch with all rows of all ranks, in the order of blocks and ranks."""

    launch: int
    first: int
    last: int
    """Numbers of its first and its last block; no other window has blocks between them."""
    frames: Mapping[str, pl.DataFrame]
    """`steps`, `buckets`, `fabric` and `parameters`, with the columns of records.columns.SCHEMAS."""
    lost: int
    """Steps that belong to none of the blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Whole blocks of a launch and where their steps lie. It can go to another process."""

    launch: int
    blocks: pl.DataFrame
    """A row for each block and rank: the table `blocks`, those of a file in its order."""
    files: tuple[Stored, ...]
    of_file: Ints
    """The file of each row."""
    places: Ints
    """Of each row: the block's number, and where its lines begin and end, bytes."""

    @classmethod
    def of(cls, launch: int, ranks: Sequence[Rank], blocks: pl.DataFrame) -> Stretch:
        """All blocks of a launch; `blocks`: those of its ranks, one after the other."""
        counts = [len(rank.places) for rank in ranks]
        return cls(
            launch=launch,
            blocks=blocks,
            files=tuple(rank.stored for rank in ranks),
            of_file=np.repeat(np.arange(len(ranks)), counts),
            places=np.concatenate([np.zeros((0, 3), dtype=np.int64), *(rank.places for rank in ranks)]),
        )

    def parts(self, most_bytes: int) -> Iterator[Stretch]:
        """Stretches of it that follow each other, with lines of about `most_bytes` each."""
        for members in _batches(self, most_bytes):
            rows = np.sort(np.concatenate(list(members.values())))
            yield dataclasses.replace(
                self, blocks=self.blocks[rows], of_file=self.of_file[rows], places=self.places[rows]
            )


def windows(stretch: Stretch, rows: int = WINDOW_ROWS) -> Iterator[Window]:
    """All blocks of a stretch, in the order of their numbers. OSError where a file cannot be read again."""
    keys = stretch.blocks.select(list(BLOCK_NAMES))
    files, of_file, places = stretch.files, stretch.of_file, stretch.places
    gathered, first, before, last = Gathered(), None, 0, 0
    for members in _batches(stretch, BATCH_BYTES):
        texts = _read(files, of_file, places, np.concatenate(list(members.values())))
        for last, of in members.items():
            one = Gathered()
            gather(last, of, texts, [files[k] for k in of_file[of]], one)
            if first is not None and gathered.height + one.height > rows:
                yield _window(stretch.launch, first, before, gathered, keys)
                gathered, first = Gathered(), None
            gathered.extend(one)
            first, before = last if first is None else first, last
    if first is not None:
        yield _window(stretch.launch, first, last, gathered, keys)


def _window(launch: int, first: int, last: int, gathered: Gathered, keys: pl.DataFrame) -> Window:
    return Window(launch=launch, first=first, last=last, frames=gathered.frames(keys), lost=gathered.lost)


def _batches(stretch: Stretch, most_bytes: int) -> Iterator[dict[int, Ints]]:
    """Rows of `places` by the blocks' numbers, in order: of blocks whose lines together have about `most_bytes`."""
    places = stretch.places
    order = np.argsort(places[:, 0], kind="stable")
    numbers, begins = np.unique(places[order, 0], return_index=True)
    batch, total = dict[int, Ints](), 0
    for number, of in zip(numbers.tolist(), np.split(order, begins[1:]), strict=False):
        batch[number] = of
        total += int((places[of, 2] - places[of, 1]).sum())
        if total >= most_bytes:
            yield batch
            batch, total = {}, 0
    if batch:
        yield batch


def _read(files: Sequence[Stored], of_file: Ints, places: Ints, wanted: Ints) -> dict[int, bytes]:
    """The lines of some blocks, by their rows in `places`; from each file in one piece."""
    texts: dict[int, bytes] = {}
    by_file = wanted[np.argsort(of_file[wanted], kind="stable")]
    for part in np.split(by_file, np.flatnonzero(np.diff(of_file[by_file])) + 1):
        begin, end = int(places[part, 1].min()), int(places[part, 2].max())
        piece = files[of_file[part[0]]].read(begin, end)
        for row, (low, high) in zip(part.tolist(), (places[part, 1:] - begin).tolist(), strict=True):
            texts[row] = piece[low:high]
    return texts
