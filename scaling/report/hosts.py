"""The hosts beside each other, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.results import Host
from scaling.report.text import cell, count, plain, quantity

Table = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, ...], ...]]

SHOWN = 16
"""Hosts in a terminal, the slowest first where there are more."""
NAME_WIDTH = 24
NOTE = "step: without DDP, every rank at work; link: with the better of two other hosts, all pairs at once"


def host_table(hosts: Sequence[Host], most: int | None = None) -> Table:
    """A row a host in their order; of more than `most` the slowest ones."""
    shown = list(hosts) if most is None or len(hosts) <= most else sorted(hosts, key=_behind)[:most]
    columns = (("host", ""), ("step", "ms"), ("/ median", ""), ("link", "Gbit/s"), ("/ median", ""))
    rows = tuple(
        (name(h), cell(h.step_ms), cell(h.step_ratio), cell(h.link_gbit_s), cell(h.link_ratio)) for h in shown
    )
    known = 5 if any(h.link_gbit_s for h in shown) else 3
    return columns[:known], tuple(row[:known] for row in rows)


def host_lines(hosts: Sequence[Host], most: int | None = None) -> tuple[str, ...]:
    """Which hosts are slower than the others, or that none is; and how many the table leaves out."""
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


def name(host: Host) -> str:
    """`2 node-7`; a long name by its end, where hosts of one network differ."""
    short = plain(host.hostname).partition(".")[0]
    return f"{host.host} {short[-NAME_WIDTH:]}".strip()


def _slow(host: Host) -> list[str]:
    said = {
        "step": f"its own step takes {quantity(host.step_ratio)} times the median host's",
        "link": f"its link gives {quantity(host.link_ratio)} of the median host's",
    }
    return [f"host {name(host)} stands out: {said[what]}" for what in host.slow_in]


def _behind(host: Host) -> float:
    """Smaller for slower hosts; those that stand out come first."""
    step = host.step_ratio.value if host.step_ratio else 1.0
    link = host.link_ratio.value if host.link_ratio else 1.0
    return min(1 / step, link) - bool(host.slow_in)
