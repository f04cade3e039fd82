"""Detailed probe blocks: stamps of all ranks as arrays, merged (`merge`), and as steps to replay (`cycles_of`).

Merging parts each rank's wait into transfer, skew (another rank is late) and enqueue (the host is late).

A bucket's collective can move data only after its last rank has launched it, and it ends when the last rank is done:
R_b = latest launch, D_b = latest done. When it moves data between the two depends on the back end (network.channel),
which also divides the link among collectives that run at once. Bytes are never divided by one rank's own duration,
which is mostly waiting for the others.

Arrays: S steps of a block, R ranks, K all-reduces of a step (M x the model's buckets, micro-step by micro-step), M
micro-steps that reduce, B broadcasts of buffers; times in ns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import Cycle, Key
from scaling.analysis.network.channel import ONE, Channel, ChannelOf, union
from scaling.analysis.network.replay import Barrier, Replay
from scaling.analysis.statistics.rounds import Floats
from scaling.records.tables import ITS_PART, Frame, few_rounds, in_memory, in_order
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES, PROBE


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStamps:
    """One detailed probe block on all ranks."""

    begin: Floats  # S x R, absolute
    end: Floats
    input: Floats  # S x R, durations
    backward: Floats
    optimizer: Floats
    compute_end: Floats  # S x R, absolute
    sync_end: Floats
    ready: Floats  # S x R x K, absolute
    launch: Floats
    done: Floats
    bytes: Floats  # K
    earlier_wait: Floats  # S x R, durations: waits for communication at the end of earlier micro-steps
    buffer_wait: Floats  # S x R, durations: broadcasts of buffers, in forward
    buffer_begin: Floats  # S x R x B, absolute: those that are known one by one
    buffer_end: Floats
    micro_steps: int = 1
    """M: 1, unless no_sync was left out."""
    channel: Channel = ONE
    start: Floats | None = None
    """S x R x K, absolute: the communicator's stream came to it; 0 where not taken. None: nowhere in the block."""
    enqueue: Floats | None = None
    """S x R x K, absolute: the host began to enqueue; None where that is not known, or no host enqueues."""
    host_ns: float = 0.0
    """How long the host takes to bring a collective to an idle device."""

    @property
    def handed(self) -> Floats:
        """S x R x K: when each rank's collective is on its communicator's stream.

        That is its launch, plus what the stream's own stamp (without waits behind others of its communicator), or else
        the host's call + `host_ns`, shows that it came later.
        """
        if self.start is not None:
            late = self.start - np.maximum(self.launch, self.channel.before(self.done))
            return np.where(self.start > 0, self.launch + np.maximum(late, 0.0), self.launch)
        if self.enqueue is None or not self.host_ns:
            return self.launch
        arrived: Floats = np.minimum(np.maximum(self.launch, self.enqueue + self.host_ns), self.done)
        return np.maximum(arrived, self.launch)

    @property
    def waited(self) -> Floats:
        """S x R: all that a rank waits for communication in a step."""
        return self.sync_end - self.compute_end + self.earlier_wait + self.buffer_wait

    @property
    def own_ends(self) -> Floats:
        """S x R x M: when a rank has the last bucket of a micro-step."""
        ends: Floats = self.done.reshape(*self.done.shape[:2], self.micro_steps, -1).max(axis=3)
        return ends

    @property
    def compute_ends(self) -> Floats:
        """S x R x M: when backward's compute ended. An earlier micro-step's ends where its last bucket is launched."""
        launched = self.launch.reshape(*self.launch.shape[:2], self.micro_steps, -1).max(axis=3)
        return np.concatenate([launched[:, :, :-1], self.compute_end[:, :, None]], axis=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A block after merging: when each bucket moved over all ranks, and each rank's wait by cause."""

    released: Floats
    """R_b, S x K: the latest launch, on the communicator's stream."""
    finished: Floats
    """D_b, S x K: the latest done."""
    begun: Floats
    """S x K: when it begins to move data; after R_b where others are before it on its communicator."""
    busy: Floats
    """S: how long the link moves data."""
    transfer: Floats
    """S x K: a bucket's share of the busy link; sums to `busy` over one link."""
    shared: Floats
    """S x K: for how long others moved data over the same link."""
    least: Floats
    """S x K: the shortest duration of a bucket's collective on any one rank's own clock.

    The last rank to launch does not wait, so this cannot exceed D_b - R_b if clocks agree. If it is clearly shorter,
    the ranks' clocks disagree, or they saw the collective end at different times.
    """
    exposed_transfer: Floats
    """S x R: the link moves data and the rank has nothing left to compute."""
    exposed_skew: Floats
    """S x R: the rank waits and the link is idle, because another rank is late."""
    exposed_enqueue: Floats
    """S x R: the rank waits and the link is idle, because a collective that all are ready for is not enqueued yet."""
    buffer_skew: Floats
    """S x R x B: the part of each broadcast in which the rank waits for others to come; the rest moves data."""


def merge(stamps: BlockStamps) -> Merged:
    """Merge one block's ranks."""
    ready = stamps.launch.max(axis=1)
    released = stamps.handed.max(axis=1)
    finished = np.maximum(stamps.done.max(axis=1), released)
    begun = stamps.channel.begun(released, finished)
    shares = stamps.channel.shares(begun, finished)
    moving, moved = (np.broadcast_to(each[:, None, :], stamps.done.shape) for each in (begun, finished))
    # Until `begun`, from when all are ready, nothing moves: that is the enqueue.
    all_ready = np.broadcast_to(np.minimum(ready, begun)[:, None, :], stamps.done.shape)
    exposed = [np.zeros_like(stamps.compute_end) for _ in range(3)]
    knows_enqueue = stamps.host_ns > 0 or stamps.start is not None
    compute_ends, own_ends = stamps.compute_ends, stamps.own_ends
    for m in range(stamps.micro_steps):
        low = compute_ends[:, :, m]
        high = np.maximum(own_ends[:, :, m], low)
        inside = np.minimum(union(moving, moved, low, high), high - low)
        enqueuing = union(all_ready, moved, low, high) - inside if knows_enqueue else np.zeros_like(inside)
        each = (inside, np.maximum(high - low - inside - enqueuing, 0.0), enqueuing)
        exposed = [so_far + more for so_far, more in zip(exposed, each, strict=True)]
    buffer_skew = np.zeros_like(stamps.buffer_begin)
    for k in range(buffer_skew.shape[2]):
        begin, end = stamps.buffer_begin[:, :, k], stamps.buffer_end[:, :, k]
        buffer_skew[:, :, k] = stamps.channel.awaited(begin, end).waited(begin, end)
    return Merged(
        released=released,
        finished=finished,
        begun=begun,
        busy=shares.busy,
        transfer=shares.transfer,
        shared=shares.shared,
        least=(stamps.done - (stamps.launch if stamps.start is None else stamps.handed)).min(axis=1),
        exposed_transfer=exposed[0],
        exposed_skew=exposed[1],
        exposed_enqueue=exposed[2],
        buffer_skew=buffer_skew,
    )


ALL_REDUCE, BROADCAST = KINDS.index("all_reduce"), KINDS.index("broadcast")

_OF_STEPS = (
    *("begin", "end", "input", "backward", "optimizer"),
    *("compute_end", "sync_end", "earlier_wait", "buffer_wait"),
)
STEP_COLUMNS = tuple(f"{name}_ns" for name in (*_OF_STEPS, "buffer_begin", "buffer_end"))
"""Columns of steps that are read, stamps and durations."""

STARVED_NS = 50_000.0
"""A device that comes to a collective this soon after the host began to enqueue it has nothing else to do by then.

An idle device takes 5 to 10 us from a launch to its start; the stamps' own errors are some 10 us.
"""


def read_detailed(
    blocks: Iterable[tuple[Key, BlockStamps]],
) -> tuple[tuple[Cycle, ...], dict[str, dict[Key, float]], tuple[int, ...]]:
    """Cycles, block means by name and (launch, round), and bytes of the last block's buckets.

    `blocks`: as `detailed_blocks` gives them.
    """
    cycles: list[Cycle] = []
    scalars: dict[str, dict[Key, float]] = {}
    sizes: tuple[int, ...] = ()
    for key, stamps in blocks:
        merged = merge(stamps)
        sizes = tuple(int(b) for b in stamps.bytes)
        for name, value in _scalars(stamps, merged).items():
            scalars.setdefault(name, {})[key] = value
        if len(stamps.begin) > 1:
            cycles += cycles_of(key, stamps, merged)
        del stamps, merged  # of very many ranks 150 MB, before the next ones are read
    return tuple(cycles), scalars, sizes


def cycles_of(key: Key, stamps: BlockStamps, merged: Merged) -> Iterator[Cycle]:
    """A cycle for each micro-step that reduces, of all steps but the first, which has none before it."""
    count, each = stamps.micro_steps, stamps.launch.shape[2] // stamps.micro_steps
    ends, compute_ends = stamps.own_ends, stamps.compute_ends
    in_which = _micro_step_of_broadcasts(stamps)
    durations = {
        "input": stamps.input,
        "step": stamps.end - stamps.begin,
        "waited": stamps.waited,
        # With the waits for the host to enqueue, which the replay counts as the link's, too.
        "moving": merged.exposed_transfer
        + merged.exposed_enqueue
        + stamps.buffer_wait
        - _buffer_skew(stamps, merged),
    }
    per_micro_step = {name: of_steps[1:] / count for name, of_steps in durations.items()}
    for index in range(count):
        origin = ends[:-1, :, -1] if index == 0 else ends[1:, :, index - 1]
        broadcasting, barriers = np.zeros_like(origin), []
        for k in np.flatnonzero(in_which == index):
            begin, end = stamps.buffer_begin[1:, :, k], stamps.buffer_end[1:, :, k]
            barriers.append(Barrier.of(begin, end, origin + broadcasting, stamps.channel.awaited(begin, end)))
            broadcasting = broadcasting + (end - begin)
        reduced = slice(index * each, (index + 1) * each)
        replay = Replay(
            ready=stamps.handed[1:, :, reduced] - (origin + broadcasting)[:, :, None],
            compute_end=compute_ends[1:, :, index] - origin - broadcasting,
            transfer=merged.transfer[1:, reduced],
            start=origin - origin.max(axis=1, keepdims=True),
            barriers=tuple(barriers),
            channel=stamps.channel.among(reduced),
        )
        yield Cycle(key=key, replay=replay, per_step=count, **per_micro_step)


def _micro_step_of_broadcasts(stamps: BlockStamps) -> Floats:
    """B: the micro-step in whose forward each broadcast of a step lies, as most ranks see it in most steps.

    It begins behind the backward before it. That is held against the end of that backward's compute, since a bucket's
    end is stamped by another thread, which may be late.
    """
    after = (stamps.buffer_begin[:, :, :, None] >= stamps.compute_ends[:, :, None, :]).sum(axis=3)
    micro_step: Floats = np.median(after, axis=(0, 1)) if after.size else np.zeros(0)
    return micro_step


def detailed_blocks(
    step_rows: Frame, buckets: Frame, blocks: Frame, n: int, channel: ChannelOf, host_ns: float = 0.0
) -> Iterator[tuple[Key, BlockStamps]]:
    """Detailed probe blocks that all ranks have whole, as arrays, by (launch, round).

    Those of a large run are read a few rounds at a time. `step_rows`, `buckets`: of world size `n`. `channel`: how the
    back end serves these communicators. `host_ns`: how long the host takes to bring a collective to an idle device.
    """
    probed = blocks.filter((pl.col("arm") == PROBE) & pl.col("detailed") & (pl.col("rank") == 0))
    micro_steps = in_memory(probed.select("launch", "block", "accumulation"))
    accumulation = {tuple(key): many for *key, many in micro_steps.rows()}
    row_key = ("launch", "block", "rank", "step")
    detailed_probe = (pl.col("arm") == PROBE) & pl.col("detailed")
    not_other_phase = pl.col("phase") != PHASES.index("other")
    stamps = ("ready_ns", "launch_ns", "start_ns", "done_ns", "enqueue_ns")
    sent = buckets.filter(detailed_probe & not_other_phase)
    sent = sent.select(*row_key, "round", "seq", "kind", "bytes", "group", *stamps, ITS_PART)
    stepped = step_rows.filter(detailed_probe).select(*row_key, "round", *STEP_COLUMNS, ITS_PART)
    for steps, rows in few_rounds(stepped, sent):
        yield from _blocks(
            in_order(steps, row_key), in_order(rows, (*row_key, "seq")), n, accumulation, channel, host_ns
        )
        del steps, rows  # a million, before the next ones are read


def _blocks(
    steps: pl.DataFrame,
    rows: pl.DataFrame,
    n: int,
    accumulation: Mapping[tuple[int, ...], int],
    channel: ChannelOf,
    host_ns: float,
) -> Iterator[tuple[Key, BlockStamps]]:
    """The blocks of some steps and their collectives, both sorted."""
    spans = rows.with_row_index("at").group_by("launch", "block").agg(pl.col("at").first(), pl.len())
    stretches = {(launch, block): (at, count) for launch, block, at, count in spans.iter_rows()}
    for block_key, part in steps.partition_by("launch", "block", as_dict=True, maintain_order=True).items():
        if block_key not in stretches:
            continue
        collectives = rows.slice(*stretches[block_key])
        all_reduces, broadcasts = (_of_kind(collectives, kind) for kind in (ALL_REDUCE, BROADCAST))
        count = part["step"].n_unique()
        if part.height != count * n or part["rank"].n_unique() != n:
            continue
        width, rest = divmod(all_reduces.height, count * n)
        if rest or not width:
            continue

        def grid(frame: pl.DataFrame, name: str, *width: int, count: int = count) -> Floats:
            values = frame[f"{name}_ns"].to_numpy().reshape(n, count, *width)
            return np.ascontiguousarray(values.swapaxes(0, 1), dtype=float)

        buffer_begin, buffer_end = _broadcasts(part, broadcasts, count, n)
        served = channel(all_reduces["group"].head(width).to_list(), ())
        stamps = BlockStamps(
            **{name: grid(part, name) for name in _OF_STEPS},
            **{name: grid(all_reduces, name, width) for name in ("ready", "launch", "done")},
            bytes=all_reduces["bytes"].head(width).to_numpy().astype(float),
            buffer_begin=buffer_begin,
            buffer_end=buffer_end,
            micro_steps=_micro_steps(part, width, accumulation.get(block_key, 1)),
            channel=served,
            start=grid(all_reduces, "start", width)
            if served.fifo and all_reduces["start_ns"].max()
            else None,
            enqueue=grid(all_reduces, "enqueue", width)
            if served.fifo and all_reduces["enqueue_ns"].min()
            else None,
            host_ns=host_ns if served.fifo else 0.0,
        )
        yield (int(part["launch"][0]), int(part["round"][0])), stamps


def _of_kind(rows: pl.DataFrame, kind: int) -> pl.DataFrame:
    """The rows of a kind of collective; no copy where all are of it, as they mostly are."""
    chosen = rows["kind"] == kind
    return rows if chosen.all() else rows.filter(chosen)


def _micro_steps(steps: pl.DataFrame, buckets: int, count: int) -> int:
    """How many of `count` micro-steps reduced: all of them where one before the last waited, else the last alone."""
    waited = count > 1 and bool((steps["earlier_wait_ns"] > 0).any())
    return count if waited and buckets % count == 0 else 1


def _broadcasts(steps: pl.DataFrame, rows: pl.DataFrame, count: int, n: int) -> tuple[Floats, Floats]:
    """Begin and end of each broadcast of buffers, `count` x n x B; without rows of them, each step's last one."""
    begin, end = (steps[f"buffer_{name}_ns"].to_numpy() for name in ("begin", "end"))
    if rows.height and rows.height % (count * n) == 0:
        begin, end = (rows[f"{name}_ns"].to_numpy() for name in ("launch", "done"))
    elif not (begin > 0).all():
        begin = end = np.zeros(0)
    begins, ends = (
        np.ascontiguousarray(ns.reshape(n, count, -1).swapaxes(0, 1), dtype=float) for ns in (begin, end)
    )
    return begins, ends


def _buffer_skew(stamps: BlockStamps, merged: Merged) -> Floats:
    """S x R: the part of all waits for buffers in which others had not come yet."""
    skew: Floats = merged.buffer_skew.sum(axis=2)
    seen = (stamps.buffer_end - stamps.buffer_begin).sum(axis=2)
    if seen.mean() < stamps.buffer_wait.mean():  # the others are split as the last one
        skew = skew * stamps.buffer_wait.mean() / max(1.0, seen.mean())
    return skew


def _scalars(stamps: BlockStamps, merged: Merged) -> dict[str, float]:
    """Block means of quantities that need all ranks together, ns."""
    begin = (stamps.sync_end - stamps.backward).max(axis=1, keepdims=True)
    buffer_skew = _buffer_skew(stamps, merged)
    transfer, skew = merged.exposed_transfer.mean(), merged.exposed_skew.mean()
    buffer_transfer = (stamps.buffer_wait - buffer_skew).mean()
    values = {
        "busy": merged.busy.mean(),
        "span": (merged.finished - merged.released).sum(axis=1).mean(),
        "least": merged.least.sum(axis=1).mean(),
        "bucket_transfer": transfer,
        "bucket_skew": skew,
        "bucket_enqueue": merged.exposed_enqueue.mean(),
        "buffer_transfer": buffer_transfer,
        "kind.0.transfer": merged.transfer.sum(axis=1).mean(),
        "kind.0.exposed_transfer": transfer,
        "kind.0.exposed_skew": skew,
        "exposed_transfer": transfer + buffer_transfer,
        "exposed_skew": skew + buffer_skew.mean(),
        "exposed_all": stamps.waited.mean(),
    }
    if stamps.enqueue is not None:
        lead = stamps.launch - stamps.enqueue
        values |= {"lead": lead.mean(), "starved": (lead < STARVED_NS).mean()}
    for k in range(stamps.launch.shape[2]):
        launch, ready = stamps.launch[:, :, k], stamps.ready[:, :, k]
        values[f"bucket.{k}.transfer"] = merged.transfer[:, k].mean()
        values[f"bucket.{k}.shared"] = merged.shared[:, k].mean()
        values[f"bucket.{k}.skew"] = (launch.max(axis=1) - launch.mean(axis=1)).mean()
        if ready.min() > 0:
            values[f"bucket.{k}.ready"] = (ready - begin).mean()
    return {name: float(value) for name, value in values.items()}
