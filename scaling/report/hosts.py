"""The hosts of a run, as a table and as sentences."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.results import HostSpeed
from scaling.plain import plain
from scaling.report.model import EVERYWHERE, MARKDOWN, PAGE, TERMINAL, Block, Renderer, Table, lines
from scaling.report.text import cell, count, quantity, sentence

SHOWN = 16
"""Hosts that text reports show; where there are more, the slowest."""
ON_PAGE = 64
"""The same for a page."""
NAME_WIDTH = 24
NOTE = "step: without DDP, every rank at work; link: with the better of two other hosts, all pairs at once"


def host_blocks(hosts: Sequence[HostSpeed]) -> tuple[Block, ...]:
    """Which host stands out, and the table; a page has more of them than text."""
    if len(hosts) <= SHOWN:
        return _blocks(hosts, None, EVERYWHERE)
    return (*_blocks(hosts, ON_PAGE, PAGE), *_blocks(hosts, SHOWN, TERMINAL | MARKDOWN))


def _blocks(hosts: Sequence[HostSpeed], most: int | None, on: Renderer) -> tuple[Block, ...]:
    said = map(sentence, host_lines(hosts, most))
    return (lines(*said, look="prose", on=on), host_table(hosts, most, on))


def host_table(hosts: Sequence[HostSpeed], most: int | None = None, on: Renderer = EVERYWHERE) -> Table:
    """A row for each host in their order; the slowest ones where there are more than `most`."""
    shown = slowest(hosts, most)
    columns = (("host", ""), ("step", "ms"), ("/ median", ""), ("link", "Gbit/s"), ("/ median", ""))
    rows = tuple(
        (name(h), cell(h.step_ms), cell(h.step_ratio), cell(h.link_gbit_s), cell(h.link_ratio)) for h in shown
    )
    known = 5 if any(h.link_gbit_s for h in shown) else 3
    return Table(
        columns=columns[:known], rows=tuple(row[:known] for row in rows), label="Hosts", note=NOTE, on=on
    )


def host_lines(hosts: Sequence[HostSpeed], most: int | None = None) -> tuple[str, ...]:
    """Which hosts are slower than the others, if any, and how many the table leaves out."""
    if not hosts:
        return ()
    said = [line for host in hosts for line in _slow(host)]
    if not said and all(host.step_ratio is None or host.step_ratio.low is None for host in hosts):
        said = ["too few rounds to tell one host from another"]
    left = 0 if most is None else len(hosts) - most
    return (
        *(said or ["no host stands out: none is behind the median host by more than chance"]),
        *([f"{count(left, 'other host')} not shown, none slower than these"] if left > 0 else []),
    )


def slowest(hosts: Sequence[HostSpeed], most: int | None) -> list[HostSpeed]:
    """The hosts in their order; the slowest ones where there are more than `most`."""
    return list(hosts) if most is None or len(hosts) <= most else sorted(hosts, key=_behind)[:most]


def name(host: HostSpeed) -> str:
    """`2 node-7`; a long name is cut at the front, because the names of one network differ at the end."""
    short = plain(host.hostname).partition(".")[0]
    return f"{host.host} {short[-NAME_WIDTH:]}".strip()


def _slow(host: HostSpeed) -> list[str]:
    said = {
        "step": f"its own step takes {quantity(host.step_ratio)} times the median host's",
        "link": f"its link gives {quantity(host.link_ratio)} of the median host's",
    }
    return [f"host {name(host)} stands out: {said[what]}" for what in host.slow_in]


def _behind(host: HostSpeed) -> float:
    """A sort key: smaller for slower hosts, and smallest for those that stand out."""
    step = host.step_ratio.value if host.step_ratio else 1.0
    link = host.link_ratio.value if host.link_ratio else 1.0
    return min(1 / step, link) - bool(host.slow_in)
