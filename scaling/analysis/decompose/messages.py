"""Detailed blocks of a pipeline: whom a rank waits for in each message, and what it waits for the link.

Ranks send each other messages and do not do alike: each has its own, and the first and the last stage have fewer. The
k-th message that a rank sends another in a step is the k-th that the other receives of it. Its data move from when both
are there, the sender's launch and the receiver's. What a rank waits before that is skew: in a pipeline, its bubble.
What it waits behind that is transfer. A sender that went on before its receiver came (a small message lies in a buffer)
waited for nobody. One wait may be for several messages that are one operation of the back end; these move together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from scaling.analysis.decompose.quantities import WAITS, Key
from scaling.analysis.decompose.sent import Sent, by_kind
from scaling.analysis.decompose.served import Groups
from scaling.spec.run import KINDS, MESSAGES
from scaling.spec.schedule import PHASES, PROBE

AXIS = "pipeline"
SEND = KINDS.index("send")
BLOCK = ["launch", "block"]
STEP = [*BLOCK, "step"]
_KIND = ["kind", "phase"]
_KINDS = [KINDS.index(name) for name in MESSAGES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """What the detailed blocks of a trial say."""

    merged: Mapping[str, dict[Key, float]]
    """Block means by name and (launch, round), mean over ranks, ns a step."""
    sent: tuple[Sent, ...]
    """Of each kind and phase, the messages of the rank that has most of it."""
    most_sent: int = 0
    """Bytes of a step's messages on the rank that sends most."""


def read_messages(
    own: pl.DataFrame, buckets: pl.LazyFrame, n: int, groups: Groups, clocks_ns: float
) -> Messages:
    """`own`: the trial's steps. `clocks_ns`: by how much the stamps of two ranks may differ."""
    steps = own.filter((pl.col("arm") == PROBE) & pl.col("detailed"))
    whole = (
        steps.group_by(*BLOCK, "round")
        .agg(steps=pl.col("step").n_unique(), rows=pl.len(), waited=WAITS.mean())
        .filter(pl.col("rows") == pl.col("steps") * n)
    )
    rows = _numbered(_rows(buckets), groups).join(whole.select(BLOCK), on=BLOCK, how="semi")
    rows = _with_both_launches(rows)
    torn = rows.filter(pl.col("sent_ns").is_null() | pl.col("posted_ns").is_null())
    rows = rows.join(torn.select(BLOCK).unique(), on=BLOCK, how="anti")
    if rows.is_empty():
        return Messages(merged={}, sent=())
    first = rows.filter(pl.struct(STEP) == pl.struct(STEP).first())
    sent = _sent(first)
    sends = first.filter(pl.col("kind") == SEND).group_by("rank").agg(pl.col("bytes").sum())
    return Messages(
        merged=_means(_windows(rows, clocks_ns), whole, sent),
        sent=sent,
        most_sent=max(sends["bytes"], default=0),
    )


def _rows(buckets: pl.LazyFrame) -> pl.DataFrame:
    messages = (pl.col("arm") == PROBE) & pl.col("detailed") & pl.col("kind").is_in(_KINDS)
    names = (*STEP, "rank", "seq", "group", *_KIND, "bytes", "launch_ns", "wait_ns", "resume_ns")
    return buckets.filter(messages).select(names).collect()


def _numbered(rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
    """From whom and for whom a message is, and its number among those; one of an unknown pair is left out."""
    pairs = rows.select("rank", "group").unique()
    peers = [next((r for r in groups(rank, key) if r != rank), -1) for rank, key in pairs.iter_rows()]
    pairs = pairs.with_columns(peer=pl.Series(peers, dtype=pl.Int64)).filter(pl.col("peer") > -1)
    own, other = pl.col("rank"), pl.col("peer")
    sends = pl.col("kind") == SEND
    rows = rows.join(pairs, on=["rank", "group"], how="inner").sort(*STEP, "rank", "seq")
    return rows.with_columns(
        source=pl.when(sends).then(own).otherwise(other), target=pl.when(sends).then(other).otherwise(own)
    ).with_columns(number=pl.col("seq").cum_count().over(*STEP, "rank", "kind", "peer"))


def _with_both_launches(rows: pl.DataFrame) -> pl.DataFrame:
    """With `sent_ns` and `posted_ns`: when the sender and the receiver launched it; null where one did not."""
    message = [*STEP, "source", "target", "number"]
    sends = pl.col("kind") == SEND
    sent = rows.filter(sends).select(*message, sent_ns="launch_ns")
    posted = rows.filter(~sends).select(*message, posted_ns="launch_ns")
    return rows.join(sent, on=message, how="left").join(posted, on=message, how="left")


def _windows(rows: pl.DataFrame, clocks_ns: float) -> pl.DataFrame:
    """Each wait with its skew and transfer, and kind and phase of the message that was there last."""
    both = pl.max_horizontal("sent_ns", "posted_ns")
    # A receiver cannot go on before its data came, so this is a sender's.
    buffered = pl.col("posted_ns") > pl.col("resume_ns") + clocks_ns
    waited = rows.filter(pl.col("wait_ns") > 0).with_columns(
        released=pl.when(buffered).then("sent_ns").otherwise(both)
    )
    windows = waited.group_by(*STEP, "rank", "wait_ns", "resume_ns").agg(
        pl.col("released").max(), *(pl.col(name).sort_by("released").last() for name in _KIND)
    )
    until = pl.col("released").clip(pl.col("wait_ns"), pl.col("resume_ns"))
    return windows.with_columns(skew=until - pl.col("wait_ns"), transfer=pl.col("resume_ns") - until)


def _means(windows: pl.DataFrame, whole: pl.DataFrame, sent: Sequence[Sent]) -> dict[str, dict[Key, float]]:
    """A step's sums, mean over steps and ranks."""
    kinds = [(sent[places[0]].kind, sent[places[0]].phase) for places in by_kind(sent)]
    sums = {"exposed_skew": pl.col("skew").sum(), "exposed_transfer": pl.col("transfer").sum()}
    for index, (kind, phase) in enumerate(kinds):
        of = (pl.col("kind") == KINDS.index(kind)) & (pl.col("phase") == PHASES.index(phase))
        for name in ("skew", "transfer"):
            sums[f"kind.{index}.exposed_{name}"] = pl.col(name).filter(of).sum()
    found: dict[str, dict[Key, float]] = {}
    for row in windows.group_by(BLOCK).agg(**sums).join(whole, on=BLOCK).iter_rows(named=True):
        key = (int(row["launch"]), int(row["round"]))
        for name in sums:
            found.setdefault(name, {})[key] = row[name] / row["rows"]
        found.setdefault("exposed_all", {})[key] = row["waited"]
        found.setdefault("bucket_enqueue", {})[key] = 0.0
    return found


def _sent(first: pl.DataFrame) -> tuple[Sent, ...]:
    """Of each kind and phase the messages of one step on the rank that has most bytes."""
    found: list[Sent] = []
    for (kind, phase), part in sorted(first.partition_by(_KIND, as_dict=True).items()):
        bytes_of = {
            rank: of["bytes"].sum() for (rank,), of in part.partition_by("rank", as_dict=True).items()
        }
        most = max(bytes_of, key=lambda rank: (bytes_of[rank], -rank))
        found += [
            Sent(kind=KINDS[kind], phase=PHASES[phase], unit=-1, bytes=size, ranks=2, axis=AXIS)
            for size in part.filter(pl.col("rank") == most)["bytes"]
        ]
    return tuple(found)
