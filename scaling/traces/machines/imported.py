"""What an import found, as lines for a person, as JSON, and as a topology file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scaling.analysis.network import cliffs
from scaling.analysis.network.nccl_causes import causes
from scaling.analysis.network.nccl_log import NcclLines
from scaling.records import files
from scaling.settings.topology import Level
from scaling.traces.machines import layout, nccl_xml, topo_matrix
from scaling.traces.machines.layout import Layout
from scaling.traces.machines.nccl_table import MODES, Fit, LogTable
from scaling.traces.machines.nccl_tests import parse_log
from scaling.units import count, format_bytes, significant


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import found; `yaml` is None where the file holds nothing usable for a topology."""

    lines: tuple[str, ...]
    document: dict[str, Any]
    yaml: str | None
    why_none: str = "the file holds nothing that a topology could be made of"
    """Why there is no `yaml`."""
    corrupt: bool = False


def import_topo(text: str, source: str, name: str) -> Imported:
    """Import a matrix of what joins devices (topo_matrix); names of GPUs tell NVLink's rate."""
    matrix = topo_matrix.parse_topo(text, source)
    signs = (
        ("amd-smi topology", f'{topo_matrix.AMD_SMI}|"link_type"'),
        ("rocm-smi --showtopo", r"XGMI|ROCm|\(Topology\)"),
    )
    kind = next((tool for tool, sign in signs if re.search(sign, text)), "nvidia-smi topo -m")
    unknown = f"{kind} tells the kind of the way and no rate"
    levels, notes = layout.levels(matrix, lambda _: (None, unknown), layout.nvlink_of(text))
    return _machine(matrix, levels, notes, source, name, kind)


def import_xml(text: str, source: str, name: str) -> Imported:
    return _machine(*nccl_xml.parse_xml(text, source), source, name, "NCCL topology XML")


def _machine(
    host: Layout, levels: tuple[Level, ...], notes: tuple[str, ...], source: str, name: str, kind: str
) -> Imported:
    pairs = [{"a": a, "b": b, "link_class": c} for (a, b), c in sorted(host.pairs.items())]
    return Imported(
        lines=tuple(layout.summary(host, levels, notes)),
        document={
            "kind": kind,
            "devices": host.devices,
            "levels": files.encode(levels),
            "islands": files.encode(host.islands),
            "numa": files.encode(host.numa),
            "nics": files.encode(host.nics),
            "pairs": pairs,
            "notes": [*host.notes, *notes],
        },
        yaml=layout.to_yaml(name, host, levels, f"{source} ({kind})"),
    )


def import_log(text: str, source: str, name: str) -> Imported:
    """Import a log of nccl-tests."""
    tables, nccl = parse_log(text, source), NcclLines()
    for line in text.splitlines() if " NCCL " in text else ():
        nccl.take(line)
    findings = tuple(causes(nccl))
    lines: list[str] = []
    documents = []
    for table in tables:
        run = [r.busbw_gb_s for t in tables if t.run == table.run for r in t.rows]
        links = table.beside(findings, nccl.network())
        lines += _table_lines(table, sum(run) / len(run), links)
        documents.append(
            {
                "collective": table.collective,
                "collective_from": table.how or None,
                "world_size": table.world_size,
                "world_size_from": table.world_from or None,
                "hosts": table.hosts,
                "hosts_from": table.hosts_from or None,
                "devices": files.encode(table.devices),
                "rows": files.encode(table.rows),
                "fits": files.encode([fit for fit in map(table.fitted, MODES) if fit is not None]),
                "average_busbw_gb_s": table.average_gb_s,
                "average_of_rows_gb_s": sum(r.busbw_gb_s for r in table.rows) / len(table.rows),
                "elided": table.elided,
                "corrupt": bool(table.wrong),
                "cliffs": files.encode(tuple(cliff for cliff, _ in table.cliffs)),
                "mistakes": table.mistakes,
                "others": links,
                "contradicting_rows": len(table.contradicting),
                "cut_off": table.cut,
            }
        )
    lines += [f"# finding     {cause}" for cause in findings]
    corrupt = any(table.wrong for table in tables)
    return Imported(
        lines=tuple(lines),
        document={"kind": "nccl-tests", "sections": documents, "findings": list(findings)},
        yaml=None if corrupt else _measured_yaml(tables, source, name),
        why_none="values came out wrong in this test" if corrupt else _why_no_topology(tables),
        corrupt=corrupt,
    )


def _table_lines(table: LogTable, average_gb_s: float, links: str | None) -> list[str]:
    """`average_gb_s`: the mean busbw of all rows of its run."""
    how = f" ({table.how})" if table.how else ""
    ranks = "unknown" if table.world_size is None else f"{table.world_size} ({table.world_from})"
    hosts = "unknown" if table.hosts is None else f"{table.hosts} ({table.hosts_from})"
    lines = [
        f"# collective  {table.collective or 'unknown'}{how}",
        f"# ranks       {ranks}",
        f"# hosts       {hosts}",
    ]
    lines += [f"# device      rank {d.rank}: {d.name} [{d.bus}] on {d.host}" for d in table.devices]
    lines.append(
        f"#{'size':>11} {'mode':>13} {'time us':>11} {'algbw Gbit/s':>13} {'busbw Gbit/s':>13} {'GB/s':>8}  wrong"
    )
    for r in table.rows:
        rates = f"{r.time_us:>11.2f} {r.algbw_gb_s * 8:>13.2f} {r.busbw_gb_s * 8:>13.2f} {r.busbw_gb_s:>8.2f}"
        wrong = "not checked" if r.wrong is None else str(r.wrong)
        lines.append(f" {format_bytes(r.bytes):>11} {r.mode:>13} {rates}  {wrong}")
    for mode in MODES:
        fit = table.fitted(mode)
        if fit is not None:
            lines.append(f"# fit         {_fit_line(fit)}")
        elif table.of(mode):
            lines.append(f"# fit         {mode}: none ({_why_no_fit(table, mode)})")
    lines += [
        f"# cliff       {cliffs.sentence(cliff)}{'' if mode == 'both' else f' ({mode} alone)'}"
        for cliff, mode in table.cliffs
    ]
    lines += [f"# MISTAKE     {text}" for text in table.mistakes]
    if links is not None:
        lines.append(f"# links       {links}")
    lines += [f"# note        {text}" for text in table.cut]
    odd = table.contradicting
    if odd:
        lines.append(
            f"# note        {len(odd)} of {len(table.rows)} rows contradict themselves, the first at "
            f"{format_bytes(odd[0].bytes)}: their bandwidths are not what their size, time and ranks give"
        )
    told = table.average_gb_s
    if told is not None:
        why = "; the log shows only some of its rows" if table.elided else "; they should agree"
        why *= abs(average_gb_s - told) > 0.005 * max(told, 0.01)
        lines.append(
            f"# average     busbw {told * 8:.5g} Gbit/s as printed, {average_gb_s * 8:.5g} of the rows{why}"
        )
    elif table.elided:
        lines.append("# note        rows are left out in the log")
    elif table.titled:
        lines.append("# note        the average that ends a log is missing: it may be cut off")
    lines += [
        f"# CORRUPT     {r.wrong} wrong values at {format_bytes(r.bytes)} {r.mode}: "
        "what a broken transfer takes is no bandwidth"
        for r in table.wrong
    ]
    return lines


def _fit_line(fit: Fit) -> str:
    latency = "latency unknown (no small message in the log)"
    if fit.alpha_us is not None:
        latency = f"{significant(fit.alpha_us)} us a hop for small messages"
    gbit = f"{fit.busbw_gbit_s:.4g} Gbit/s ({fit.busbw_gbit_s / 8:.4g} GB/s)"
    best = f"the log's best busbw, at {format_bytes(fit.at_bytes)}"
    if fit.fallen is not None:
        best += f", falling to {fit.fallen[1]:.4g} at {format_bytes(fit.fallen[0])}"
    off = f"a straight line between them is off by {fit.residual:.0%} in the median"
    return f"{fit.mode}: {latency}, {gbit} for large ones ({best}); {off}"


def _why_no_fit(table: LogTable, mode: str) -> str:
    if table.wrong:
        return "its data are corrupt"
    if table.world_size is None:
        return "the number of ranks is not known"
    if len(table.of(mode)) < 3:
        return "fewer than three sizes"
    return "no ring model for this collective" if table.collective else "which collective is not known"


def _measured(tables: Sequence[LogTable]) -> tuple[LogTable, Fit] | None:
    """The all-reduce table of most ranks that has a fit."""
    fits = [
        (t, f)
        for t in tables
        if t.collective == "all_reduce" and not t.mistakes and (f := t.fitted(MODES[0]) or t.fitted(MODES[1]))
    ]
    return max(fits, key=lambda item: item[0].world_size or 0, default=None)


def _why_no_topology(tables: Sequence[LogTable]) -> str:
    measured = _measured(tables)
    if measured is None:
        mistakes = (text for t in tables for text in t.mistakes)
        return next(mistakes, "the file holds no all_reduce that could be fitted")
    return (
        f"the log does not tell on how many hosts its {measured[0].world_size} ranks ran; give a file's name with "
        "it, such as 2node_all_reduce.log"
    )


def _measured_yaml(tables: Sequence[LogTable], source: str, name: str) -> str | None:
    """The best all-reduce table as a topology of the devices it ran on; None without a fit or the hosts."""
    measured = _measured(tables)
    if measured is None or measured[0].hosts is None or measured[0].hosts_from.startswith("assumed"):
        return None
    table, fit = measured
    n, hosts = table.world_size or 1, table.hosts or 1
    whole = Level(
        name="measured",
        link_class="measured",
        ranks=n // hosts,
        rate_bit_s=round(fit.busbw_gbit_s * 1e9),
        latency_us=fit.alpha_us,
        source=f"all_reduce of {n} ranks in {source}, {fit.mode}, at {format_bytes(fit.at_bytes)}: what was "
        "reached, not what is nominal",
    )
    notes = [f"{n} ranks", *sorted({d.name for d in table.devices})]
    if not table.devices:
        notes.append(f"{count(hosts, 'host')} ({table.hosts_from})")
    machine = Layout(devices=n // hosts, pairs={}, numa=(), nics=(), notes=tuple(notes))
    inside, between = ((whole,), None) if hosts == 1 else ((), whole)
    return layout.to_yaml(name, machine, inside, f"{source} (nccl-tests)", between, hosts)
