"""What a run ran on: its kinds of machines, its hosts compared, and how far the own steps of many ranks are apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scaling.analysis.results import HostSpeed, HostSteps, RankSpread
from scaling.analysis.results.machine import MachineGroup
from scaling.plain import plain
from scaling.report.model import MARKDOWN, PAGE, TERMINAL, Block, Column, Table, lines, tabulated
from scaling.report.text import NONE, cell, count, number, quantity, ranges, sentence
from scaling.settings.plan import Plan
from scaling.units import format_bytes

NAMES = (
    ("device_name", "device"),
    ("cpu", "CPU"),
    ("cores", "cores"),
    ("threads", "threads a rank"),
    ("driver", "driver"),
    ("cuda", "CUDA"),
    ("cudnn", "cuDNN"),
    ("nccl", "NCCL"),
    ("torch", "torch"),
    ("python", "Python"),
    ("kernel", "kernel"),
)
HOSTS_SHOWN = 4


def machine_table(machines: Sequence[MachineGroup], plan: Plan) -> Table:
    """Every fact that some machine reported, and the version of the code; no row without machines."""
    columns = (("", ""), *((_ranks(machine.ranks), "") for machine in machines))
    memories = [m.device_memory_bytes for m in machines]
    facts: list[tuple[str, Sequence[str | None]]] = [
        ("hosts", [_hosts(machine) for machine in machines]),
        *((label, [getattr(machine, name) for machine in machines]) for name, label in NAMES),
        ("device memory", [None if size is None else format_bytes(size) for size in memories]),
        ("environment", [", ".join(map("=".join, machine.environment)) or None for machine in machines]),
        ("scaling-harness", [plan.version] * len(machines)),
        ("commit", [plan.commit or None] * len(machines)),
    ]
    rows = tuple(
        (label, *(NONE if value is None else str(value) for value in values))
        for label, values in facts
        if any(value is not None for value in values)
    )
    return Table(columns=columns, rows=rows, label="Machine and environment", words=True)


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 0`, `ranks 0-7`, `ranks 0-3, 8`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {ranges(ranks)}"


def _hosts(machine: MachineGroup) -> str:
    shown = ", ".join(machine.hosts[:HOSTS_SHOWN])
    more = len(machine.hosts) - HOSTS_SHOWN
    return f"{shown} and {count(more, 'other')}" if more > 0 else shown


SHOWN = 16
"""Hosts that text reports show; where there are more, the slowest."""
ON_PAGE = 64
"""Hosts that a page shows."""
NAME_WIDTH = 24
HOSTS_NOTE = (
    "step: without DDP, every rank at work; link: with the better of two other hosts, all pairs at once"
)


def host_blocks(hosts: Sequence[HostSpeed]) -> Iterator[Block]:
    """Which host stands out, and the table; a page has more of them than text."""
    for most, on in ((ON_PAGE, PAGE), (SHOWN, TERMINAL | MARKDOWN)):
        yield lines(*map(sentence, host_lines(hosts, most)), look="prose", on=on)
        yield replace(host_table(hosts, most), on=on)


def host_name(host: HostSpeed | HostSteps) -> str:
    """`2 node-7`; a long name is cut at the front, because the names of one network differ at the end."""
    short = plain(host.hostname).partition(".")[0]
    return f"{host.host} {short[-NAME_WIDTH:]}".strip()


HOSTS: tuple[Column[HostSpeed], ...] = (
    ("host", "", host_name),
    ("step", "ms", lambda h: cell(h.step_ms)),
    ("/ median", "", lambda h: cell(h.step_ratio)),
    ("link", "Gbit/s", lambda h: cell(h.link_gbit_s)),
    ("/ median", "", lambda h: cell(h.link_ratio)),
)


def host_table(hosts: Sequence[HostSpeed], most: int = ON_PAGE) -> Table:
    """A row for each host in their order; the slowest ones where there are more than `most`."""
    shown = slowest(hosts, most)
    columns = HOSTS if any(h.link_gbit_s for h in shown) else HOSTS[:3]
    return tabulated(shown, columns, label="Hosts", note=HOSTS_NOTE)


def host_lines(hosts: Sequence[HostSpeed], most: int = ON_PAGE) -> tuple[str, ...]:
    """Which hosts are slower than the others, if any, and how many the table leaves out."""
    if not hosts:
        return ()
    told = [line for host in hosts for line in _slow(host)]
    if not told and all(host.step_ratio is None or host.step_ratio.low is None for host in hosts):
        told = ["too few rounds to tell one host from another"]
    told = told or ["no host stands out: none is behind the median host by more than chance"]
    if len(hosts) > most:
        told.append(f"{count(len(hosts) - most, 'other host')} not shown, none slower than these")
    return tuple(told)


def slowest(hosts: Sequence[HostSpeed], most: int) -> list[HostSpeed]:
    """The hosts in their order; the slowest ones where there are more than `most`."""
    return list(hosts) if len(hosts) <= most else sorted(hosts, key=_behind)[:most]


def _slow(host: HostSpeed) -> list[str]:
    sentences = {
        "step": f"its own step takes {quantity(host.step_ratio)} times the median host's",
        "link": f"its link gives {quantity(host.link_ratio)} of the median host's",
    }
    return [f"host {host_name(host)} stands out: {sentences[what]}" for what in host.slow_in]


def _behind(host: HostSpeed) -> float:
    """A sort key: smaller for slower hosts, and smallest for those that stand out."""
    step = host.step_ratio.value if host.step_ratio else 1.0
    link = host.link_ratio.value if host.link_ratio else 1.0
    return min(1 / step, link) - bool(host.slow_in)


RANKS_NOTE = (
    "own step: without DDP, every rank at work; the hosts with the slowest ranks, each with its slowest ranks"
)


def rank_blocks(steps: RankSpread | None) -> Iterator[Block]:
    """A sentence and the slowest ranks."""
    if steps is not None:
        yield lines(*map(sentence, rank_lines(steps)), look="prose")
        yield rank_table(steps)


def rank_lines(steps: RankSpread) -> tuple[str, ...]:
    """How far the ranks are apart, and which is the slowest."""
    apart = (
        f"the own steps of {count(steps.world_size, 'rank')} take {number(steps.median_ms)} ms in the median, "
        f"90 % of them {number(steps.p5_ms)} to {number(steps.p95_ms)} ms, all of them {number(steps.least_ms)} to "
        f"{number(steps.most_ms)} ms"
    )
    if not steps.slow:
        return (apart, "no rank is slower by itself than the median rank by more than chance")
    first = steps.hosts[0]
    which = (
        f"rank {first.slowest[0].rank} on host {host_name(first)} most" if first.slowest else host_name(first)
    )
    slower = f"{count(steps.slow, 'rank')} {'is' if steps.slow == 1 else 'are'} slower by more than chance"
    return (apart, f"{slower}, {which}")


def rank_table(steps: RankSpread) -> Table:
    """A row for each of the slowest ranks, host by host."""
    rows = tuple(
        (
            host_name(host) if not at else "",
            number(host.ratio) if not at else "",
            f"{step.rank}{' slow' if step.slow else ''}",
            cell(step.step_ms),
            cell(step.ratio),
        )
        for host in steps.hosts
        for at, step in enumerate(host.slowest)
    )
    columns = (("host", ""), ("its ranks / median", ""), ("rank", ""), ("own step", "ms"), ("/ median", ""))
    slow = "; slow: slower than the median rank by more than chance among all" if steps.slow else ""
    return Table(columns=columns, rows=rows, label="The slowest ranks", note=RANKS_NOTE + slow)
