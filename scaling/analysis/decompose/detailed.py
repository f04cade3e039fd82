"""The detailed probe blocks of all ranks as arrays, merged, and as periods that can be replayed."""

from __future__ import annotations

import polars as pl

from scaling.analysis.decompose.merge import BlockStamps, Merged, merge
from scaling.analysis.decompose.quantities import Cycle
from scaling.analysis.statistics.rounds import Floats
from scaling.spec.schedule import PROBE


def read_detailed(
    own: pl.DataFrame, buckets: pl.LazyFrame, n: int
) -> tuple[tuple[Cycle, ...], dict[str, dict[tuple[int, int], float]], tuple[int, ...]]:
    """Cycles, block means by name and (launch, round), and bytes of the buckets, all of world size `n`."""
    cycles: list[Cycle] = []
    scalars: dict[str, dict[tuple[int, int], float]] = {}
    sizes: tuple[int, ...] = ()
    for key, stamps in detailed_blocks(own, buckets, n):
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
    return Cycle(
        key=key,
        ready=stamps.launch[1:] - (own_end + held)[:, :, None],
        compute_end=stamps.compute_end[1:] - own_end - held,
        transfer=merged.transfer[1:],
        start=own_end - own_end.max(axis=1, keepdims=True),
        input=stamps.input[1:],
        barrier=stamps.barrier(own_end, first=1),
    )


def detailed_blocks(
    own: pl.DataFrame, buckets: pl.LazyFrame, n: int
) -> list[tuple[tuple[int, int], BlockStamps]]:
    """Detailed probe blocks that all ranks have whole, as arrays. `own`, `buckets`: of world size `n`."""
    found = []
    place = ["launch", "block", "step", "rank"]
    steps = own.filter((pl.col("arm") == PROBE) & pl.col("detailed")).sort(place)
    rows = (
        buckets.filter((pl.col("arm") == PROBE) & pl.col("detailed"))
        .select(*place, "seq", "bytes", "ready_ns", "launch_ns", "done_ns")
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
        "bucket_wait": (stamps.sync_end - stamps.compute_end).mean(),
        "buffer_transfer": (stamps.buffer_wait - merged.buffer_skew).mean(),
        "buffer_skew": merged.buffer_skew.mean(),
    }
    values["exposed_transfer"] = values["bucket_transfer"] + values["buffer_transfer"]
    values["exposed_skew"] = values["bucket_skew"] + values["buffer_skew"]
    values["exposed_all"] = values["bucket_wait"] + stamps.buffer_wait.mean()
    for k in range(stamps.launch.shape[2]):
        values[f"bucket.{k}.transfer"] = merged.transfer[:, k].mean()
        values[f"bucket.{k}.skew"] = (merged.released[:, k] - stamps.launch[:, :, k].mean(axis=1)).mean()
        if stamps.ready[:, :, k].min() > 0:
            values[f"bucket.{k}.ready"] = (stamps.ready[:, :, k] - begin).mean()
    return {name: float(value) for name, value in values.items()}
