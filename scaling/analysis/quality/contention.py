"""Blocks in which other programs took the cores, and machines whose hypervisor took processor time. Pure.

In blocks without communication one thread needs one core, so any wait for a core is caused by another program. With
communication the backend's own threads need cores too. A run that has few or no other blocks (a loop of one's own, a
run by cases) is judged by these: a wait that the ranks' own threads cannot have caused, by the processor time that
they took, was caused by another program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from scaling.analysis.results import Point
from scaling.analysis.results.verdicts import NOTABLE
from scaling.records.tables import Frame, Tables, in_memory
from scaling.settings.cases import LATENCY, THROUGHPUT, TRAINING
from scaling.settings.plan import Plan
from scaling.settings.schedule import BARE_ALL, BARE_ONE, PLAIN, PROBE
from scaling.units import format_duration

CONTENDED = 0.05
"""A block is contended if its thread waited for a core for more than this share of the time."""
MORE_MOST = 25
"""Times as many rounds at most that a better answer is promised for; beyond, their spread is a guess."""
CONTENDED_SHARE = 0.1
"""A warning is given if more than this share of the blocks is contended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stolen:
    """One machine's samples: the share of busy processor time that its hypervisor gave to other machines."""

    hostname: str
    shares: tuple[float, ...]
    pressed: Mapping[str, float] = field(default_factory=dict)
    """Share of the time in which some process waited for `cpu`, `memory`, `io`; empty where that is not known."""

    @property
    def often(self) -> int:
        """Samples with more than CONTENDED."""
        return sum(share > CONTENDED for share in self.shares)

    @property
    def notable(self) -> bool:
        """Whether this happened often enough for a warning."""
        return self.often > CONTENDED_SHARE * len(self.shares)


def judged(tables: Tables, plan: Plan) -> pl.DataFrame:
    """The blocks that show whether other programs ran, with `contended`: null where the kernel does not tell."""
    times = ("begin_ns", "end_ns", "cpu_ns", "thread_cpu_ns", "delayed_ns")
    blocks = tables.blocks.select("launch", "round", "block", "rank", "arm", *times)
    solo = alone(blocks)
    together = [PLAIN, PROBE] if plan.kind.followed else [THROUGHPUT, TRAINING]
    beside = in_memory(blocks.filter(pl.col("arm").is_in(together)))
    cores = min((rank.cores for rank in tables.ranks), default=0)
    if beside.is_empty() or not cores:
        return solo
    hosts = {rank: plan.spec.topology.host_of(rank) for rank in beside["rank"].unique()}
    return pl.concat([solo, _beyond_own_threads(beside, hosts, cores)], how="diagonal")


def alone(blocks: Frame) -> pl.DataFrame:
    """Blocks without communication, with `contended`."""
    solo = in_memory(blocks.filter(pl.col("arm").is_in([BARE_ONE, BARE_ALL, LATENCY])))
    return solo.with_columns(contended=_waited() > CONTENDED * _wall())


def _beyond_own_threads(blocks: pl.DataFrame, hosts: dict[int, int], cores: int) -> pl.DataFrame:
    """Blocks in which all ranks work, with `contended`.

    While a thread waits for a core, all `cores` run others. If those were the ranks' own R stepping threads and their
    helpers, the helpers took at least the waiting beyond R - cores threads: E[helpers] >= E[waiting] - (R - cores), and
    where R < cores, E[helpers] >= E[waiting] cores / R. What exceeds this bound, another program caused.
    """
    place = ["launch", "block", "host"]
    ranks = pl.len().over(place).cast(pl.Int64)
    helpers = (pl.col("cpu_ns") - pl.col("thread_cpu_ns")).clip(0) / _wall()
    explained = helpers.sum().over(place) * (ranks / cores).clip(0, 1) + (ranks - cores).clip(0)
    waiting = (_waited() / _wall()).sum().over(place)
    host = pl.col("rank").replace_strict(hosts, return_dtype=pl.Int64)
    rows = blocks.with_columns(host=host).with_columns(beyond=(waiting - explained) / ranks)
    contended = (pl.col("beyond") > CONTENDED) & (_waited() > CONTENDED * _wall())
    return rows.with_columns(contended=contended).drop("host", "beyond")


def _waited() -> pl.Expr:
    """Time that the stepping thread waited for a core, ns; null where the kernel does not tell."""
    return pl.when(pl.col("delayed_ns") >= 0).then(pl.col("delayed_ns"))


def _wall() -> pl.Expr:
    return pl.col("end_ns") - pl.col("begin_ns")


def count(blocks: pl.DataFrame) -> tuple[int, int]:
    """(contended, all) of the judged blocks, counted by rank."""
    return int(blocks["contended"].sum()), blocks.height


def warnings(blocks: pl.DataFrame, plan: Plan, stolen: Sequence[Stolen] = ()) -> tuple[str, ...]:
    """A warning for each machine that other programs, or other virtual machines, used. `blocks`: judged ones."""
    contended, whole = count(blocks)
    lines = [
        f"contended: in {host.often} of {len(host.shares)} samples of {host.hostname} the hypervisor gave more than "
        f"{CONTENDED:.0%} of the processors' time to other machines (steal); measure again later, or on a dedicated "
        "machine"
        for host in stolen
        if host.notable
    ]
    if _crowded(blocks):
        lines.append(
            f"contended: {contended} of {whole} {plan.kind.blocks} waited for a core more than {CONTENDED:.0%} of the "
            f"time, because {_others(plan)} were running; intervals are wide; measure again on a quiet machine"
        )
    elif plan.kind.followed and (share := _share_waited(blocks)) > CONTENDED:
        lines.append(
            f"the ranks waited for a core {share:.0%} of the time, and their own threads may be why, if there are more "
            "of them than cores (torch.set_num_threads, OMP_NUM_THREADS)"
        )
    return tuple(lines)


def doubts(blocks: pl.DataFrame, plan: Plan, stolen: Sequence[Stolen] = ()) -> tuple[str, ...]:
    """The reason why every finding is only a hint, if other programs ran. `blocks`: judged ones."""
    if _crowded(blocks):
        return (f"{_others(plan)} were running on this machine, so this is a hint, not a finding",)
    if not (hosts := [host.hostname for host in stolen if host.notable]):
        return ()
    return (
        f"the hypervisor took processor time away from {', '.join(hosts)}, so this is a hint, not a finding",
    )


def unquiet(point: Point, seconds_a_round: float, stolen: Sequence[Stolen] = ()) -> tuple[str, ...]:
    """What the machine was too unquiet for, how long it would take, and what others waited for; empty if quiet."""
    apart = point.overhead.equal_arms_apart
    if apart is None or apart.value <= NOTABLE or point.efficiency is None:
        return ()
    rounds = point.efficiency.n
    more = math.ceil(rounds * (apart.value / NOTABLE) ** 2)
    takes = "a quieter machine"
    if more <= MORE_MOST * rounds:
        takes = f"about {more} rounds ({format_duration(more * seconds_a_round)}), or {takes}"
    quiet = (
        f"this machine was not quiet enough for less than {apart.value:.0%} of the step, by which equal blocks of this "
        f"run come out apart; for {NOTABLE:.0%} it takes {takes}"
    )
    names = {"cpu": "a core", "memory": "memory", "io": "a disk"}
    waits = [f"{names[name]} {share:.0%}" for host in stolen[:1] for name, share in host.pressed.items()]
    pressed = f"meanwhile some process waited for {', '.join(waits)} of the time"
    return (quiet, *([pressed] if waits else []))


def beside(steps: pl.DataFrame, blocks: pl.DataFrame, world_size: int) -> tuple[bool | None, ...]:
    """For each of `steps` (launch, round, begin_ns), whether other programs ran then.

    The answer is taken from the nearest judged block (`blocks`) of the same round, on any rank of `world_size`.
    None where the round has no such block, or the kernel does not report waiting.
    """
    middle_ns = (pl.col("begin_ns").min() + pl.col("end_ns").max()) // 2
    middles = (
        blocks.filter(pl.col("rank") < world_size)
        .group_by("launch", "round", "block")
        .agg(middle_ns=middle_ns, contended=pl.col("contended").max())
    )
    nearest = (
        steps.select("launch", "round", "begin_ns")
        .with_row_index("step")
        .join(middles, on=["launch", "round"], how="left")
        .with_columns(apart_ns=(pl.col("begin_ns") - pl.col("middle_ns")).abs())
        .sort("step", "apart_ns", "block")
        .group_by("step", maintain_order=True)
        .first()
    )
    return tuple(nearest["contended"].to_list())


def _crowded(blocks: pl.DataFrame) -> bool:
    contended, whole = count(blocks)
    return contended > CONTENDED_SHARE * whole


def _share_waited(blocks: pl.DataFrame) -> float:
    """Share of the blocks' time that their threads waited for a core; 0 where the kernel does not tell."""
    reported = blocks.filter(pl.col("delayed_ns") >= 0)
    return float(reported["delayed_ns"].sum() / max(1, (reported["end_ns"] - reported["begin_ns"]).sum()))


def _others(plan: Plan) -> str:
    """The programs that may have taken the cores."""
    workers = plan.kind.followed or plan.spec.data.workers
    return "other programs or this run's own data workers" if workers else "other programs"
