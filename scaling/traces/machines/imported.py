"""What an import found, as lines for a person, as JSON, and as a topology file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scaling.analysis.network import links
from scaling.analysis.network.cliffs import sentence
from scaling.records import files
from scaling.settings.topology import Level
from scaling.traces.job_log import findings_in
from scaling.traces.machines import layout, nccl_xml, topo_matrix
from scaling.traces.machines.layout import Layout
from scaling.traces.machines.nccl_section import MODES, Fit, Section
from scaling.traces.machines.nccl_tests import parse_log
from scaling.units import format_bytes


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
    """Import the output of `nvidia-smi topo -m` or `rocm-smi --showtopo`; names of GPUs tell NVLink's rate."""
    found = topo_matrix.parse_topo(text, source)
    kind = "rocm-smi --showtopo" if "XGMI" in found.pairs.values() or "ROCm" in text else "nvidia-smi topo -m"
    unknown = f"{kind} tells the kind of the way and no rate"
    made, left = layout.levels(found, lambda _: (None, unknown), layout.nvlink_of(text))
    return _machine(found, made, left, source, name, kind)


def import_xml(text: str, source: str, name: str) -> Imported:
    found, made, left = nccl_xml.parse_xml(text, source)
    return _machine(found, made, left, source, name, "NCCL topology XML")


def _machine(
    found: Layout, made: tuple[Level, ...], left: tuple[str, ...], source: str, name: str, kind: str
) -> Imported:
    pairs = [{"a": a, "b": b, "link_class": c} for (a, b), c in sorted(found.pairs.items())]
    return Imported(
        lines=tuple(layout.summary(found, made, left)),
        document={
            "kind": kind,
            "devices": found.devices,
            "levels": files.encode(made),
            "islands": files.encode(found.islands),
            "numa": files.encode(found.numa),
            "nics": files.encode(found.nics),
            "pairs": pairs,
            "notes": [*found.notes, *left],
        },
        yaml=layout.to_yaml(name, found, made, f"{source} ({kind})"),
    )


def import_log(text: str, source: str, name: str) -> Imported:
    """Import a log of nccl-tests."""
    sections = parse_log(text, source)
    ways = findings_in(text.splitlines()) if "NCCL INFO" in text else ()
    lines: list[str] = []
    documents = []
    for section in sections:
        run = [r.busbw_gb_s for s in sections if s.run == section.run for r in s.rows]
        others = _others(section, ways)
        lines += _section_lines(section, sum(run) / len(run), others)
        fits = [f for f in map(section.fitted, MODES) if f is not None]
        documents.append(
            {
                "collective": section.collective,
                "collective_from": section.how or None,
                "world_size": section.world_size,
                "world_size_from": section.world_from or None,
                "hosts": section.hosts,
                "hosts_from": section.hosts_from or None,
                "devices": files.encode(section.devices),
                "rows": files.encode(section.rows),
                "fits": files.encode(fits),
                "average_busbw_gb_s": section.average_gb_s,
                "average_of_rows_gb_s": section.own_average_gb_s,
                "elided": section.elided,
                "corrupt": bool(section.wrong),
                "cliffs": files.encode(tuple(cliff for cliff, _ in section.cliffs)),
                "mistakes": _mistakes(section),
                "others": others,
                "contradicting_rows": len(section.contradicting),
            }
        )
    lines += [f"# finding     {way}" for way in ways]
    corrupt = any(s.wrong for s in sections)
    return Imported(
        lines=tuple(lines),
        document={"kind": "nccl-tests", "sections": documents, "findings": list(ways)},
        yaml=None if corrupt else _measured_yaml(sections, source, name),
        why_none="values came out wrong in this test" if corrupt else _why_no_topology(sections),
        corrupt=corrupt,
    )


def _section_lines(section: Section, own: float, others: str | None) -> list[str]:
    """`own`: the mean busbw of all rows of its run in GB/s."""
    of = f" ({section.how})" if section.how else ""
    ranks = "unknown" if section.world_size is None else f"{section.world_size} ({section.world_from})"
    hosts = "unknown" if section.hosts is None else f"{section.hosts} ({section.hosts_from})"
    lines = [
        f"# collective  {section.collective or 'unknown'}{of}",
        f"# ranks       {ranks}",
        f"# hosts       {hosts}",
    ]
    lines += [f"# device      rank {d.rank}: {d.name} [{d.bus}] on {d.host}" for d in section.devices]
    lines.append(
        f"#{'size':>11} {'mode':>13} {'time us':>11} {'algbw Gbit/s':>13} {'busbw Gbit/s':>13} {'GB/s':>8}  wrong"
    )
    for r in section.rows:
        rates = f"{r.time_us:>11.2f} {r.algbw_gb_s * 8:>13.2f} {r.busbw_gb_s * 8:>13.2f} {r.busbw_gb_s:>8.2f}"
        wrong = "not checked" if r.wrong is None else str(r.wrong)
        lines.append(f" {format_bytes(r.bytes):>11} {r.mode:>13} {rates}  {wrong}")
    for mode in MODES:
        found = section.fitted(mode)
        if found is not None:
            lines.append(f"# fit         {_fit_line(found)}")
        elif section.of(mode):
            lines.append(f"# fit         {mode}: none ({_why_no_fit(section, mode)})")
    lines += [
        f"# cliff       {sentence(cliff)}{'' if mode == 'both' else f' ({mode} alone)'}"
        for cliff, mode in section.cliffs
    ]
    lines += [f"# MISTAKE     {text}" for text in _mistakes(section)]
    if others is not None:
        lines.append(f"# links       {others}")
    odd = section.contradicting
    if odd:
        lines.append(
            f"# note        {len(odd)} of {len(section.rows)} rows contradict themselves, the first at "
            f"{format_bytes(odd[0].bytes)}: their bandwidths are not what their size, time and ranks give"
        )
    told = section.average_gb_s
    if told is not None:
        agree = abs(own - told) <= 0.005 * max(told, 0.01)
        rest = (
            ""
            if agree
            else "; the log shows only some of its rows"
            if section.elided
            else "; they should agree"
        )
        lines.append(f"# average     busbw {told * 8:.5g} Gbit/s as printed, {own * 8:.5g} of the rows{rest}")
    elif section.elided:
        lines.append("# note        rows are left out in the log")
    elif section.titled and told is None:
        lines.append("# note        the average that ends a log is missing: it may be cut off")
    lines += [
        f"# CORRUPT     {r.wrong} wrong values at {format_bytes(r.bytes)} {r.mode}: "
        "what a broken transfer takes is no bandwidth"
        for r in section.wrong
    ]
    return lines


def _others(section: Section, ways: Sequence[str]) -> str | None:
    """The best row beside what others reach on such a machine; None where the table has none, or the log misleads."""
    best = max(section.rows, key=lambda r: r.busbw_gb_s)
    names = {d.name for d in section.devices}
    n, hosts = section.world_size, section.hosts
    if n is None or hosts is None or section.collective is None or len(names) != 1 or section.wrong:
        return None
    if _mistakes(section):
        return None
    return links.beside(next(iter(names)), n, hosts, section.collective, best.bytes, best.busbw_gb_s, ways)


def _mistakes(section: Section) -> list[str]:
    """What the log shows of how the test was started wrongly, with the remedy."""
    found = []
    if section.one_rank:
        found.append(
            "every process ran alone, with one rank, so nothing crossed a link: build nccl-tests with MPI=1 and start "
            "it with mpirun, or with srun --mpi=pmix; or let one process take N GPUs with -g N"
        )
    found += [
        f"ranks {', '.join(map(str, ranks))} use one GPU, so this is no bandwidth of a link: give each process a GPU "
        "of its own (srun --ntasks-per-node=N --gpus-per-node=N, no CUDA_VISIBLE_DEVICES that is the same for all)"
        for ranks in section.shared_devices
    ]
    return found


def _fit_line(found: Fit) -> str:
    latency = "latency unknown (no small message in the log)"
    if found.alpha_us is not None:
        latency = f"{found.alpha_us:.3g} us a hop for small messages"
    gbit = f"{found.busbw_gbit_s:.4g} Gbit/s ({found.busbw_gbit_s / 8:.4g} GB/s)"
    best = f"the log's best busbw, at {format_bytes(found.at_bytes)}"
    if found.fallen is not None:
        best += f", falling to {found.fallen[1]:.4g} at {format_bytes(found.fallen[0])}"
    off = f"a straight line between them is off by {found.residual:.0%} in the median"
    return f"{found.mode}: {latency}, {gbit} for large ones ({best}); {off}"


def _why_no_fit(section: Section, mode: str) -> str:
    if section.wrong:
        return "its data are corrupt"
    if section.world_size is None:
        return "the number of ranks is not known"
    if len(section.of(mode)) < 3:
        return "fewer than three sizes"
    return "no ring model for this collective" if section.collective else "which collective is not known"


def _measured(sections: Sequence[Section]) -> tuple[Section, Fit] | None:
    """The all-reduce table of most ranks that has a fit."""
    fits = [
        (s, f)
        for s in sections
        if s.collective == "all_reduce"
        and not _mistakes(s)
        and (f := s.fitted(MODES[0]) or s.fitted(MODES[1]))
    ]
    return max(fits, key=lambda item: item[0].world_size or 0, default=None)


def _why_no_topology(sections: Sequence[Section]) -> str:
    measured = _measured(sections)
    if measured is None:
        return next(
            (text for s in sections for text in _mistakes(s)),
            "the file holds no all_reduce that could be fitted",
        )
    return (
        f"the log does not tell on how many hosts its {measured[0].world_size} ranks ran; give a file's name with "
        "it, such as 2node_all_reduce.log"
    )


def _measured_yaml(sections: Sequence[Section], source: str, name: str) -> str | None:
    """The best all-reduce table as a topology of the devices it ran on; None without a fit or the hosts."""
    measured = _measured(sections)
    if measured is None or measured[0].hosts is None or measured[0].hosts_from.startswith("assumed"):
        return None
    section, found = measured
    n, hosts = section.world_size or 1, section.hosts or 1
    whole = Level(
        name="measured",
        link_class="measured",
        ranks=n // hosts,
        rate_bit_s=round(found.busbw_gbit_s * 1e9),
        latency_us=found.alpha_us,
        source=f"all_reduce of {n} ranks in {source}, {found.mode}, at {format_bytes(found.at_bytes)}: what was "
        "reached, not what is nominal",
    )
    notes = [f"{n} ranks", *sorted({d.name for d in section.devices})]
    if not section.devices:
        notes.append(f"{hosts} {'host' if hosts == 1 else 'hosts'} ({section.hosts_from})")
    machine = Layout(devices=n // hosts, pairs={}, numa=(), nics=(), notes=tuple(notes))
    return layout.to_yaml(
        name,
        machine,
        (whole,) if hosts == 1 else (),
        f"{source} (nccl-tests)",
        whole if hosts > 1 else None,
        hosts,
    )
