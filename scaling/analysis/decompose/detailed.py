"""The detailed probe blocks of all ranks as arrays, merged, and as periods that can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from scaling.analysis.decompose.merge import BlockStamps, Merged, merge
from scaling.analysis.decompose.quantities import Cycle
from scaling.analysis.network.channel import Channel
from scaling.analysis.network.replay import Replay
from scaling.analysis.statistics.rounds import Floats
from scaling.records.tables import Tables
from scaling.spec.plan import Plan
from scaling.spec.schedule import PROBE

STARVED_NS = 50_000.0
"""A device that comes to a collective this soon after the host began to enqueue it has nothing else to do by then.

An idle device takes 5 to 10 us from a launch to its start; the stamps' own errors are some 10 us.
"""
ChannelOf = Callable[[Sequence[int]], Channel]
"""From the communicator of each collective of a step, in order."""


def channels(tables: Tables, plan: Plan) -> ChannelOf:
    """The back end of a plan. Communicators between hosts share a wire, and so do those within hosts."""
    backend = plan.spec.topology.backend
    host = {(file.launch, file.rank): file.host for file in tables.ranks}
    across: dict[int, int] = {}
    for file in tables.ranks:
        for key, members in file.groups.items():
            if file.rank == members[0]:  # each group once
                hosts = {host.get((file.launch, rank), file.host) for rank in members}
                across[key] = max(across.get(key, 0), int(len(hosts) > 1))

    def channel(communicators: Sequence[int]) -> Channel:
        return Channel.of(backend, communicators, lambda key: across.get(key, 0))

    return channel


def read_detailed(
    own: pl.DataFrame, buckets: pl.LazyFrame, n: int, channel: ChannelOf, host_ns: float = 0.0
) -> tuple[tuple[Cycle, ...], dict[str, dict[tuple[int, int], float]], tuple[int, ...]]:
    """Cycles, block means by name and (launch, round), and bytes of the buckets, all of world size `n`.

    `channel`: how the back end serves collectives on these communicators. `host_ns`: how long the host takes to bring
    one to an idle device.
    """
    cycles: list[Cycle] = []
    scalars: dict[str, dict[tuple[int, int], float]] = {}
    sizes: tuple[int, ...] = ()
    for key, stamps in detailed_blocks(own, buckets, n, channel, host_ns):
        merged = merge(stamps)
        sizes = tuple(int(b) for b in stamps.bytes)
        for name, value in _scalars(stamps, merged).items():
            scalars.setdefault(name, {})[key] = value
        if len(stamps.begin) < 2:
            continue
        cycles.append(_cycle(key, stamps, merged))
    return tuple(cycles), scalars, sizes


def _cycle(key: tuple[int, int], stamps: BlockStamps, merged: Merged) -> Cycle:
    own_end = stamps.done.max(axis=2)[:-1]
    held = (stamps.buffer_end - stamps.buffer_begin)[1:]  # 0 without buffers
    replay = Replay(
        ready=stamps.handed[1:] - (own_end + held)[:, :, None],
        compute_end=stamps.compute_end[1:] - own_end - held,
        transfer=merged.transfer[1:],
        start=own_end - own_end.max(axis=1, keepdims=True),
        barrier=stamps.barrier(own_end, first=1),
        channel=stamps.channel,
    )
    return Cycle(key=key, replay=replay, input=stamps.input[1:])


def detailed_blocks(
    own: pl.DataFrame, buckets: pl.LazyFrame, n: int, channel: ChannelOf, host_ns: float = 0.0
) -> list[tuple[tuple[int, int], BlockStamps]]:
    """Detailed probe blocks that all ranks have whole, as arrays. `own`, `buckets`: of world size `n`."""
    found = []
    place = ["launch", "block", "step", "rank"]
    steps = own.filter((pl.col("arm") == PROBE) & pl.col("detailed")).sort(place)
    rows = (
        buckets.filter((pl.col("arm") == PROBE) & pl.col("detailed"))
        .select(*place, "seq", "bytes", "group", "ready_ns", "launch_ns", "done_ns", "enqueue_ns")
        .sort(*place, "seq")
        .collect()
    )
    row_parts = rows.partition_by("launch", "block", as_dict=True)
    for block_key, part in steps.partition_by("launch", "block", as_dict=True, maintain_order=True).items():
        block_rows = row_parts.get(block_key)
        count = part["step"].n_unique()
        if block_rows is None or part.height != count * n or part["rank"].n_unique() != n:
            continue
        width, rest = divmod(block_rows.height, count * n)
        if rest or not width:
            continue

        def grid(name: str, frame: pl.DataFrame = part, shape: tuple[int, ...] = (count, n)) -> Floats:
            return frame[name].to_numpy().astype(float).reshape(shape)

        def cube(
            name: str, frame: pl.DataFrame = block_rows, shape: tuple[int, ...] = (count, n, width)
        ) -> Floats:
            return frame[name].to_numpy().astype(float).reshape(shape)

        key = (int(part["launch"][0]), int(part["round"][0]))
        found.append(
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
                    bytes=cube("bytes")[0, 0],
                    buffer_wait=grid("buffer_wait_ns"),
                    buffer_begin=grid("buffer_begin_ns"),
                    buffer_end=grid("buffer_end_ns"),
                    channel=(served := channel(block_rows["group"].head(width).to_list())),
                    enqueue=cube("enqueue_ns") if served.fifo and block_rows["enqueue_ns"].min() else None,
                    host_ns=host_ns if served.fifo else 0.0,
                ),
            )
        )
    return found


def _scalars(stamps: BlockStamps, merged: Merged) -> dict[str, float]:
    """Block means of quantities that need all ranks together, ns."""
    begin = (stamps.sync_end - stamps.backward).max(axis=1, keepdims=True)
    values = {
        "busy": merged.busy.mean(),
        "span": (merged.finished - merged.released).sum(axis=1).mean(),
        "least": merged.least.sum(axis=1).mean(),
        "bucket_transfer": merged.exposed_transfer.mean(),
        "bucket_skew": merged.exposed_skew.mean(),
        "bucket_enqueue": merged.exposed_enqueue.mean(),
        "bucket_wait": (stamps.sync_end - stamps.compute_end).mean(),
        "buffer_transfer": (stamps.buffer_wait - merged.buffer_skew).mean(),
        "buffer_skew": merged.buffer_skew.mean(),
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
    values["exposed_all"] = values["bucket_wait"] + stamps.buffer_wait.mean()
    for k in range(stamps.launch.shape[2]):
        values[f"bucket.{k}.transfer"] = merged.transfer[:, k].mean()
        values[f"bucket.{k}.shared"] = merged.shared[:, k].mean()
        values[f"bucket.{k}.skew"] = (merged.released[:, k] - stamps.launch[:, :, k].mean(axis=1)).mean()
        if stamps.ready[:, :, k].min() > 0:
            values[f"bucket.{k}.ready"] = (stamps.ready[:, :, k] - begin).mean()
    return {name: float(value) for name, value in values.items()}
