"""What is decoded of a trace file's JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec


class Args(msgspec.Struct, gc=False):
    """What an event says of itself, as far as it is used here."""

    stream: int | float | str | None = None
    correlation: int | float | str | None = None
    grid: tuple[int, ...] | None = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: int | float | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: int | float | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: int | float | None = msgspec.field(default=None, name="Group size")
    dtype: str | None = None
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    seq: int | float | None = msgspec.field(default=None, name="Seq")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")


class TraceEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One event that lasts; times in microseconds, fractions kept, NaN where it has none."""

    cat: str = ""
    name: str = ""
    tid: int | float | str | None = None
    ts: float = math.nan
    dur: float = math.nan
    args: msgspec.Raw = msgspec.Raw(b"{}")
    """Decoded on demand (`TraceStream.said`): the arguments of operators are long and rarely needed."""


class Other(msgspec.Struct, gc=False):
    """An event of another phase, such as an arrow, a counter or the name of a thread: counted and skipped."""


class DistributedInfo(msgspec.Struct, gc=False):
    """The rank that wrote the trace, and its job."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    pg_config: list[dict[str, Any]] | dict[str, Any] | None = None


class Meta(msgspec.Struct, gc=False):
    """The keys beside `traceEvents`."""

    distributed: DistributedInfo | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[dict[str, Any]] | None = msgspec.field(default=None, name="deviceProperties")
    host_name: str | None = None
    base_ns: int | None = msgspec.field(default=None, name="baseTimeNanoseconds")
    schema_version: int | str | None = msgspec.field(default=None, name="schemaVersion")
