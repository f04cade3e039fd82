"""The detailed probe blocks of all ranks as arrays, merged, and as periods that can be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import polars as pl

from scaling.analysis.decompose.merge import BlockStamps, Merged, merge
from scaling.analysis.decompose.quantities import Cycle
from scaling.analysis.decompose.served import ChannelOf
from scaling.analysis.network.barrier import Barrier
from scaling.analysis.network.replay import Replay
from scaling.analysis.statistics.rounds import Floats
from scaling.records.frames import ITS_PART, Frame, few_rounds, in_memory, in_order, runs
from scaling.spec.run import COLLECTIVES
from scaling.spec.schedule import PHASES, PROBE

ALL_REDUCE, BROADCAST = COLLECTIVES.index("all_reduce"), COLLECTIVES.index("broadcast")

STAMPS = (
    "begin_ns",
    "end_ns",
    "input_ns",
    "forward_ns",
    "backward_ns",
    "optimizer_ns",
    "compute_end_ns",
    "sync_end_ns",
    "earlier_wait_ns",
    "buffer_wait_ns",
    "buffer_begin_ns",
    "buffer_end_ns",
)
"""Columns of steps that are read."""

STARVED_NS = 50_000.0
"""A device that comes to a collective this soon after the host began to enqueue it has nothing else to do by then.

An idle device takes 5 to 10 us from a launch to its start; the stamps' own errors are some 10 us.
"""


def read_detailed(
    blocks: Iterable[tuple[tuple[int, int], BlockStamps]],
) -> tuple[tuple[Cycle, ...], dict[str, dict[tuple[int, int], float]], tuple[int, ...]]:
    """Cycles, block means by name and (launch, round), and bytes of the buckets; `blocks`: as `detailed_blocks`."""
    cycles: list[Cycle] = []
    scalars: dict[str, dict[tuple[int, int], float]] = {}
    sizes: tuple[int, ...] = ()
    for key, stamps in blocks:
        merged = merge(stamps)
        sizes = tuple(int(b) for b in stamps.bytes)
        for name, value in _scalars(stamps, merged).items():
            scalars.setdefault(name, {})[key] = value
        if len(stamps.begin) < 2:
            continue
        cycles += cycles_of(key, stamps, merged)
        del stamps, merged  # of very many ranks 150 MB, before the next ones are read
    return tuple(cycles), scalars, sizes


def cycles_of(key: tuple[int, int], stamps: BlockStamps, merged: Merged) -> Iterator[Cycle]:
    """A cycle for each micro-step that reduces, of all steps but the first, which has none before it."""
    count, each = stamps.micro_steps, stamps.launch.shape[2] // stamps.micro_steps
    ends, compute_ends = stamps.own_ends, stamps.compute_ends
    in_which = _micro_step_of_broadcasts(stamps)
    durations = {
        "input": stamps.input,
        "step": stamps.end - stamps.begin,
        "waited": stamps.waited,
        "moving": merged.exposed_transfer + stamps.buffer_wait - _buffer_skew(stamps, merged),
    }
    shared = {name: of_steps[1:] / count for name, of_steps in durations.items()}
    for index in range(count):
        before = ends[:-1, :, -1] if index == 0 else ends[1:, :, index - 1]
        held, barriers = np.zeros_like(before), []
        for k in np.flatnonzero(in_which == index):
            begin, end = stamps.buffer_begin[1:, :, k], stamps.buffer_end[1:, :, k]
            barriers.append(Barrier.of(begin, end, before + held, stamps.channel.awaited(begin, end)))
            held = held + (end - begin)
        own = slice(index * each, (index + 1) * each)
        replay = Replay(
            ready=stamps.handed[1:, :, own] - (before + held)[:, :, None],
            compute_end=compute_ends[1:, :, index] - before - held,
            transfer=merged.transfer[1:, own],
            start=before - before.max(axis=1, keepdims=True),
            barriers=tuple(barriers),
            channel=stamps.channel.among(own),
        )
        yield Cycle(key=key, replay=replay, of=count, **shared)


def _micro_step_of_broadcasts(stamps: BlockStamps) -> Floats:
    """B: the micro-step in whose forward each broadcast of a step lies, as most ranks see it in most steps.

    It begins behind the backward before it. That is held against the end of that backward's compute, since a bucket's
    end is stamped by another thread, which may be late.
    """
    after = (stamps.buffer_begin[:, :, :, None] >= stamps.compute_ends[:, :, None, :]).sum(axis=3)
    found: Floats = np.median(after, axis=(0, 1)) if after.size else np.zeros(0)
    return found


def detailed_blocks(
    own: Frame,
    buckets: Frame,
    blocks: Frame,
    n: int,
    channel: ChannelOf,
    host_ns: float = 0.0,
) -> Iterator[tuple[tuple[int, int], BlockStamps]]:
    """Detailed probe blocks that all ranks have whole, as arrays, by (launch, round).

    Those of a large run are read a few rounds at a time. `own`, `buckets`: of world size `n`. `channel`: how the back
    end serves collectives on these communicators. `host_ns`: how long the host takes to bring one to an idle device.
    """
    probed = blocks.filter((pl.col("arm") == PROBE) & pl.col("detailed") & (pl.col("rank") == 0))
    micro_steps = in_memory(probed.select("launch", "block", "accumulation"))
    accumulation = {tuple(key): many for *key, many in micro_steps.rows()}
    place = ("launch", "block", "rank", "step")
    chosen = (pl.col("arm") == PROBE) & pl.col("detailed")
    of_model = pl.col("phase") != PHASES.index("other")
    stamps = ("ready_ns", "launch_ns", "start_ns", "done_ns", "enqueue_ns")
    sent = buckets.filter(chosen & of_model)
    sent = sent.select(*place, "round", "seq", "kind", "bytes", "group", *stamps, ITS_PART)
    stepped = own.filter(chosen).select(*place, "round", *STAMPS, ITS_PART)
    for steps, rows in few_rounds(stepped, sent):
        yield from _blocks(
            in_order(steps, place), in_order(rows, (*place, "seq")), n, accumulation, channel, host_ns
        )
        del steps, rows  # a million, before the next ones are read


def _blocks(
    steps: pl.DataFrame,
    rows: pl.DataFrame,
    n: int,
    accumulation: Mapping[tuple[int, ...], int],
    channel: ChannelOf,
    host_ns: float,
) -> Iterator[tuple[tuple[int, int], BlockStamps]]:
    """The blocks of some steps and their collectives, both sorted."""
    of_block = runs(rows, ("launch", "block"))
    places = of_block.table().rows()
    stretches = dict(zip(places, zip(of_block.begins, of_block.lengths, strict=True), strict=True))
    for block_key, part in steps.partition_by("launch", "block", as_dict=True, maintain_order=True).items():
        if block_key not in stretches:
            continue
        own = rows.slice(*stretches[block_key])
        block_rows, broadcasts = (_of_kind(own, kind) for kind in (ALL_REDUCE, BROADCAST))
        count = part["step"].n_unique()
        if part.height != count * n or part["rank"].n_unique() != n:
            continue
        width, rest = divmod(block_rows.height, count * n)
        if rest or not width:
            continue

        def grid(name: str, frame: pl.DataFrame = part, shape: tuple[int, ...] = (n, count)) -> Floats:
            return np.ascontiguousarray(frame[name].to_numpy().reshape(shape).swapaxes(0, 1), dtype=float)

        def cube(
            name: str, frame: pl.DataFrame = block_rows, shape: tuple[int, ...] = (n, count, width)
        ) -> Floats:
            return grid(name, frame, shape)

        key = (int(part["launch"][0]), int(part["round"][0]))
        buffer_begin, buffer_end = _broadcasts(part, broadcasts, count, n)
        yield (
            (
                key,
                BlockStamps(
                    begin=grid("begin_ns"),
                    end=grid("end_ns"),
                    input=grid("input_ns"),
                    forward=grid("forward_ns"),
                    backward=grid("backward_ns"),
                    optimizer=grid("optimizer_ns"),
                    compute_end=grid("compute_end_ns"),
                    sync_end=grid("sync_end_ns"),
                    ready=cube("ready_ns"),
                    launch=cube("launch_ns"),
                    done=cube("done_ns"),
                    bytes=block_rows["bytes"].head(width).to_numpy().astype(float),
                    earlier_wait=grid("earlier_wait_ns"),
                    buffer_wait=grid("buffer_wait_ns"),
                    buffer_begin=buffer_begin,
                    buffer_end=buffer_end,
                    micro_steps=_micro_steps(part, width, accumulation.get(block_key, 1)),
                    channel=(served := channel(block_rows["group"].head(width).to_list())),
                    start=cube("start_ns") if served.fifo and block_rows["start_ns"].max() else None,
                    enqueue=cube("enqueue_ns") if served.fifo and block_rows["enqueue_ns"].min() else None,
                    host_ns=host_ns if served.fifo else 0.0,
                ),
            )
        )


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
        np.ascontiguousarray(of.reshape(n, count, -1).swapaxes(0, 1), dtype=float) for of in (begin, end)
    )
    return begins, ends


def _buffer_skew(stamps: BlockStamps, merged: Merged) -> Floats:
    """S x R: the part of all waits for buffers in which others had not come yet."""
    found: Floats = merged.buffer_skew.sum(axis=2)
    known = (stamps.buffer_end - stamps.buffer_begin).sum(axis=2)
    if known.mean() < stamps.buffer_wait.mean():  # the others are split as the last one
        found = found * stamps.buffer_wait.mean() / max(1.0, known.mean())
    return found


def _scalars(stamps: BlockStamps, merged: Merged) -> dict[str, float]:
    """Block means of quantities that need all ranks together, ns."""
    begin = (stamps.sync_end - stamps.backward).max(axis=1, keepdims=True)
    buffer_skew = _buffer_skew(stamps, merged)
    values = {
        "busy": merged.busy.mean(),
        "span": (merged.finished - merged.released).sum(axis=1).mean(),
        "least": merged.least.sum(axis=1).mean(),
        "bucket_transfer": merged.exposed_transfer.mean(),
        "bucket_skew": merged.exposed_skew.mean(),
        "bucket_enqueue": merged.exposed_enqueue.mean(),
        "bucket_wait": (stamps.sync_end - stamps.compute_end + stamps.earlier_wait).mean(),
        "buffer_transfer": (stamps.buffer_wait - buffer_skew).mean(),
        "buffer_skew": buffer_skew.mean(),
    }
    if stamps.enqueue is not None:
        lead = stamps.launch - stamps.enqueue
        values |= {"lead": lead.mean(), "starved": (lead < STARVED_NS).mean()}
    values |= {
        "kind.0.transfer": merged.transfer.sum(axis=1).mean(),
        "kind.0.exposed_transfer": values["bucket_transfer"],
        "kind.0.exposed_skew": values["bucket_skew"],
    }
    values["exposed_transfer"] = values["bucket_transfer"] + values["buffer_transfer"]
    values["exposed_skew"] = values["bucket_skew"] + values["buffer_skew"]
    values["exposed_all"] = stamps.waited.mean()
    for k in range(stamps.launch.shape[2]):
        values[f"bucket.{k}.transfer"] = merged.transfer[:, k].mean()
        values[f"bucket.{k}.shared"] = merged.shared[:, k].mean()
        values[f"bucket.{k}.skew"] = (
            stamps.launch[:, :, k].max(axis=1) - stamps.launch[:, :, k].mean(axis=1)
        ).mean()
        if stamps.ready[:, :, k].min() > 0:
            values[f"bucket.{k}.ready"] = (stamps.ready[:, :, k] - begin).mean()
    return {name: float(value) for name, value in values.items()}
