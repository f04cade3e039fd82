"""The own steps of many ranks: their distribution, and the slowest of them host by host."""

from __future__ import annotations

from scaling.analysis.results import HostSteps, RankSpread
from scaling.plain import plain
from scaling.report.model import PAGE, Block, Figure, Table, lines
from scaling.report.plots.spread import spread
from scaling.report.text import cell, count, number, sentence

NAME_WIDTH = 24
NOTE = "own step: without DDP, every rank at work; the hosts with the slowest ranks, and of each the slowest ranks"


def rank_blocks(found: RankSpread | None) -> tuple[Block, ...]:
    """A sentence, the distribution on a page, and the slowest ranks."""
    if found is None:
        return ()
    said = lines(*map(sentence, rank_lines(found)), look="prose")
    return (said, Figure(plot=spread(found), on=PAGE), rank_table(found))


def rank_lines(found: RankSpread) -> tuple[str, ...]:
    """How far the ranks are apart, and which is the slowest."""
    apart = (
        f"the own steps of {count(found.world_size, 'rank')} take {number(found.median_ms)} ms in the median, "
        f"90 % of them {number(found.p5_ms)} to {number(found.p95_ms)} ms, all of them {number(found.least_ms)} to "
        f"{number(found.most_ms)} ms"
    )
    if not found.slow:
        return (apart, "no rank is slower by itself than the median rank by more than chance")
    first = found.hosts[0]
    which = f"rank {first.slowest[0].rank} on host {name(first)} most" if first.slowest else name(first)
    slower = f"{count(found.slow, 'rank')} {'is' if found.slow == 1 else 'are'} slower by more than chance"
    return (apart, f"{slower}, {which}")


def rank_table(found: RankSpread) -> Table:
    """A row for each of the slowest ranks, host by host."""
    rows = tuple(
        (
            name(host) if not at else "",
            number(host.ratio) if not at else "",
            f"{step.rank}{' slow' if step.slow else ''}",
            cell(step.step_ms),
            cell(step.ratio),
        )
        for host in found.hosts
        for at, step in enumerate(host.slowest)
    )
    columns = (("host", ""), ("its ranks / median", ""), ("rank", ""), ("own step", "ms"), ("/ median", ""))
    slow = "; slow: slower than the median rank by more than chance among all" if found.slow else ""
    return Table(columns=columns, rows=rows, label="The slowest ranks", note=NOTE + slow)


def name(host: HostSteps) -> str:
    """`2 node-7`; a long name is cut at the front, because the names of one network differ at the end."""
    short = plain(host.hostname).partition(".")[0]
    return f"{host.host} {short[-NAME_WIDTH:]}".strip()
