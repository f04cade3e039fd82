"""Traffic of DDP beside the gradients' buckets: what was seen of it, and what a verdict may lack without it. Pure."""

from __future__ import annotations

import polars as pl

from scaling.records.tables import Tables
from scaling.spec.plan import Plan
from scaling.spec.schedule import PROBE
from scaling.units import format_bytes


def warnings(tables: Tables, plan: Plan, buffers_bytes: int) -> tuple[str, ...]:
    """What is known of the buffers' broadcasts and of the bitmap of used parameters."""
    said = []
    if _unseen(tables, plan, buffers_bytes):
        said.append(
            f"the module has {format_bytes(buffers_bytes)} of buffers, which DDP broadcasts before forward; the waits "
            "there were not seen (torch.compile around DDP hides them) and count as forward"
        )
    elif buffers_bytes and plan.ranks > 1 and (share := _share_in_buffers(tables)):
        said.append(
            f"the module has {format_bytes(buffers_bytes)} of buffers, which DDP broadcasts before forward: "
            f"{share:.1%} of the step, counted as exposed transfer and skew, not in the gradients' traffic"
        )
    if plan.spec.ddp.find_unused_parameters and plan.ranks > 1:
        said.append(
            "find_unused_parameters: its extra all-reduce is in the step time and not in the gradients' traffic"
        )
    return tuple(said)


def doubts(tables: Tables, plan: Plan, buffers_bytes: int) -> tuple[str, ...]:
    """The reason why a finding is only a hint, where ranks may have waited for each other unseen."""
    if not _unseen(tables, plan, buffers_bytes):
        return ()
    return ("waits for DDP's broadcast of buffers were not seen, so this is a hint, not a finding",)


def _unseen(tables: Tables, plan: Plan, buffers_bytes: int) -> bool:
    stamped = _stamped(tables)
    return buffers_bytes > 0 and plan.ranks > 1 and stamped.height > 0 and not stamped["buffer_wait_ns"].max()


def _share_in_buffers(tables: Tables) -> float:
    """Mean share of a stamped step, over all ranks."""
    stamped = _stamped(tables)
    length = (stamped["end_ns"] - stamped["begin_ns"]).sum()
    return float(stamped["buffer_wait_ns"].sum() / length) if length else 0.0


def _stamped(tables: Tables) -> pl.DataFrame:
    return tables.steps.filter((pl.col("arm") == PROBE) & (pl.col("world_size") > 1))
