"""What a job's output says of its communication: NCCL's own lines (NCCL_DEBUG=INFO) and torch's watchdog.

The watchdog's lines: torch's ProcessGroupNCCL.cpp, `[rank3]:` before each. NCCL's: scaling.analysis.network.nccl_log.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scaling.analysis.doctor.differences import ranks_text
from scaling.analysis.network.nccl_causes import causes
from scaling.analysis.network.nccl_log import SHOWN, NcclLines, lines_of
from scaling.errors import InputError, while_reading
from scaling.traces.kinds import Told
from scaling.traces.machines.nccl_tests import parse_log

EXPECTED = "a job's output with lines of NCCL (NCCL_DEBUG=INFO) or of torch's NCCL watchdog is expected"
RANKS_MAX = 1_000_000
TABLE_BYTES_MAX = 1 << 24
"""A table of nccl-tests is looked for in so much of an output."""
_RANK = re.compile(r"^\s*(?:\S+:\s*)?\[rank(\d{1,6})\]:")
_TIMED_OUT = re.compile(
    r"\[Rank (\d{1,6})\].*Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,12}), OpType=(\w+)"
    r".*?NumelIn=(\d{1,15}).*?Timeout\(ms\)=(\d{1,12})"
)
_STANDS = re.compile(
    r"(?:PG (?:ID \S+ PG GUID )?([^()\s]*)(?:\((\w+)\))? )?Rank (\d{1,6})\].*?"
    r"(?:at work(?: sequence id)?: (\d{1,12}).*?)?"
    r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,12}), last completed (?:NCCL )?work: (-?\d{1,12})"
)
_STUCK = re.compile(r"Rank (\d{1,6})\].*watchdog got stuck for (\d{1,9}) seconds")
_RAISED = re.compile(r"collective timeout from\s+rank (\d{1,6})")


@dataclass(slots=True)
class _Watchdog:
    """The watchdog's lines of all ranks."""

    ranks: int = 0
    """Ranks that any line names."""
    stands: dict[str, dict[int, tuple[int, int | None]]] = field(default_factory=dict)
    """By process group and rank: number of the last collective enqueued, and completed (None: not known)."""
    timed_out: dict[int, tuple[int, str, int, int]] = field(default_factory=dict)
    """By rank: number, kind, elements, time-out in ms."""
    groups: dict[tuple[int, int], str] = field(default_factory=dict)
    """Process group by rank and number of the collective that timed out: each group counts its own."""
    names: dict[str, str] = field(default_factory=dict)
    """What groups of a name are called, by name and GUID: several of a mesh share a name."""
    stuck: dict[int, int] = field(default_factory=dict)
    """By rank: seconds that the watchdog itself stood still."""
    raised: set[int] = field(default_factory=set)
    """Ranks whose time-out others tell of."""

    def take(self, line: str) -> None:
        """Add a line of a job's output."""
        prefix = _RANK.match(line)
        if prefix:
            self.ranks = max(self.ranks, int(prefix[1]) + 1)
        if late := _TIMED_OUT.search(line):
            rank = int(prefix[1] if prefix else late[1])
            self.timed_out.setdefault(rank, (int(late[2]), late[3], int(late[4]), int(late[5])))
        elif stands := _STANDS.search(line):
            guid, name, _, failed, *numbers = stands.groups()
            rank = int(prefix[1] if prefix else stands[3])
            group = self._group(guid or "0", name)
            enqueued, completed = map(int, numbers)  # torch 2.3 prints any number where none completed
            self.stands.setdefault(group, {})[rank] = enqueued, completed if completed <= enqueued else None
            if failed:
                self.groups[rank, int(failed)] = group
        elif stuck := _STUCK.search(line):
            self.stuck[int(prefix[1] if prefix else stuck[1])] = int(stuck[2])
        self.raised.update(int(rank) for rank in _RAISED.findall(line))

    def _group(self, guid: str, name: str | None) -> str:
        """Its name, with its GUID behind it from the second group of that name on."""
        name = name or ("default_pg" if guid == "0" else f"group {guid}")
        another = self.names.setdefault(name, guid) != guid
        return f"{name} ({guid})" if another else name

    def waits(self) -> Iterator[str]:
        """Which collective is waited for, who is behind, and who says nothing."""
        by_group: dict[str, dict[int, tuple[int, str, int, int]]] = {}
        for r, late in sorted(self.timed_out.items()):
            by_group.setdefault(self.groups.get((r, late[0]), ""), {})[r] = late
        for group, timed_out in by_group.items():
            (seq, kind, elements, ms), _ = Counter(timed_out.values()).most_common(1)[0]
            waiting = ranks_text([r for r, late in timed_out.items() if late[0] == seq])
            within = f" ({group})" if group and len(by_group) > 1 else ""
            yield f"{waiting} waited {ms / 1e3:.6g} s in {kind} {seq}{within} of {elements} elements"
            for r, late in timed_out.items():
                if late[:3] != (seq, kind, elements):
                    yield (
                        f"rank {r} waited in {late[1]} {late[0]} of {late[2]} elements: the ranks did not call the "
                        "same collectives in the same order"
                    )
        if self.stuck:
            yield (
                f"{ranks_text(sorted(self.stuck))}: the watchdog itself stood still for {max(self.stuck.values())} s: "
                "a call of CUDA or NCCL does not return, or a thread holds the GIL in one (py-spy dump shows which)"
            )
        absent = self.raised - set(self.timed_out)
        if absent:
            yield f"{ranks_text(sorted(absent))} had the time-out that others tell of; the output is missing here"
        for group, stands in self.stands.items():
            most = max(e for e, _ in stands.values())
            done = max((c for _, c in stands.values() if c is not None), default=None)
            for r, (e, c) in sorted(stands.items())[:RANKS_MAX]:
                if e < most or (c is not None and c < (done or 0)):
                    yield (
                        f"rank {r} is behind in {group}: it enqueued up to {e} and completed {c}, others {most} and "
                        f"{done}: look at what it did on its host then"
                    )
        spoke = set[int]().union(self.timed_out, self.stuck, self.raised, *self.stands.values())
        world = max([self.ranks, *(r + 1 for r in spoke)])
        silent = [r for r in range(min(world, RANKS_MAX)) if r not in spoke] if spoke else []
        if silent:
            yield (
                f"{ranks_text(silent)} of {world}: no line of the watchdog, so no wait in NCCL. It crashed, "
                "hangs on its host (input, checkpoint, another branch), or its output is missing here"
            )


def _silent(nccl: NcclLines, listed: set[str]) -> Iterator[str]:
    """Hosts that a table lists and NCCL says nothing of, though settings of its environment show on others."""
    silent = sorted(listed - set(nccl.named))
    if silent and nccl.settings and len(silent) < len(listed):
        names = ", ".join(["NCCL_DEBUG", *list(nccl.settings)[:3]])
        yield (
            f"no line of NCCL comes from {', '.join(silent[:SHOWN])}, where ranks ran too: if all output is here, the "
            f"environment ({names}) did not get there: mpirun -x NAME, srun --export=ALL"
        )


def read_job_logs(paths: Iterable[Path]) -> Told:
    """All files of one job together. InputError where no line of NCCL or of its watchdog is in them.

    `findings` of the document name a cause and a remedy.
    """
    nccl, watchdog, links, listed = NcclLines(), _Watchdog(), [], set()
    paths = list(paths)
    for path in paths:
        text: list[str] = []
        with while_reading(path, EXPECTED):
            ranks, size = 1, 0
            for line in lines_of(path):
                ranks = nccl.take(line, ranks)
                watchdog.take(line)
                size += len(line)
                if size < TABLE_BYTES_MAX:
                    text.append(line)
        with contextlib.suppress(InputError):  # most outputs hold no table of nccl-tests
            tables = parse_log("".join(text), str(path))
            beside = (table.beside(tuple(causes(nccl)), nccl.network()) for table in tables)
            links += [text for text in beside if text is not None]
            listed |= {device.host for table in tables for device in table.devices}
    if not (nccl.hosts or watchdog.stands or watchdog.timed_out or watchdog.stuck):
        raise InputError(f"{', '.join(map(str, paths[:3]))}: no such line in it; {EXPECTED}")
    watchdog.ranks = max(watchdog.ranks, nccl.ranks)
    findings = [*watchdog.waits(), *causes(nccl), *_silent(nccl, listed)]
    hosts = sorted((name, h) for name, h in nccl.hosts.items() if h.sends or h.receives)
    lines = [f"# host     {name}: {h.text()}" for name, h in hosts[:SHOWN]]
    if len(hosts) > SHOWN:
        lines.append(f"# host     and {len(hosts) - SHOWN} more")
    lines += [f"# links    {text}" for text in links]
    lines += [f"# finding  {text}" for text in findings]
    lines += [f"# warned   {text}" for text in list(nccl.warnings)[:3]]
    if not findings:
        lines.append("# finding  none: nothing here differs between hosts or is known to be slow")
    document = {
        "kind": "job_log",
        "hosts": {
            name: {"send": dict(h.sends), "receive": dict(h.receives), "cards": sorted(h.cards_used, key=int)}
            for name, h in hosts
        },
        "stands": {
            g: {str(r): {"enqueued": e, "completed": c} for r, (e, c) in s.items()}
            for g, s in watchdog.stands.items()
        },
        "findings": findings,
        "links": links,
        "warnings": list(nccl.warnings)[:SHOWN],
    }
    return Told(lines=tuple(lines), document=document)
