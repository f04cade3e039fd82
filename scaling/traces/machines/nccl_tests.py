"""Logs of nccl-tests (and rccl-tests): text in every layout that it prints, and the JSON that its option -J writes.

Layouts are those of src/util.cu of NVIDIA/nccl-tests up to 2.18.3: a row is size, count, type, redop, root, then time,
algbw, busbw and the number of wrong values for each mode; -I adds four figures of the iterations to each mode, -T a
time stamp to each row. Launchers put their tags before a line, and inside one where the output came in two parts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from scaling.errors import InputError
from scaling.traces.machines.nccl_table import MODES, NODES, LoggedDevice, LogTable, Row
from scaling.traces.profiler.signs import element_bytes
from scaling.units import format_bytes

EXPECTED = "a log of nccl-tests is expected, with rows of size, count, type, ... time, algbw, busbw"
NO_NUMBER = "the row of {} has no number for {} (nan)"
_TAG = re.compile(
    r"\[(?:[\w.-]{1,80}@)?\d{1,7},\d{1,7}\]<std\w{3,4}>:?|\[\d{1,6}\](?=\s|$)|(?<!\S)\d{1,6}:(?=\s)|\x1b\[[\d;]*m"
)
"""What launchers put before their processes' output: `[1,0]<stdout>:`, `[0]`, `0: `; and colours."""
_ROW = re.compile(r"(?:^|[\s:>|\]])(\d{1,18}\s+\d{1,18}\s+[A-Za-z]\w*\s.*)$")
"""A row behind whatever a pod's log or a person has put before it."""
_IN_PLACE = re.compile(r"\d+\s+\d+\s+\w+(?:\s+[a-z]\w*)?(?:\s+-?\d{1,6})?\s{30}")
"""A row whose columns of the out-of-place mode are blank."""
_WHOLE = re.compile(r"\d+\.\d\d|\d[\d.e+]{4,}\d")
"""A figure of six columns that was printed to its end."""
_THOUSANDS = re.compile(r"(?<!\S)\d{1,3}(?:,\d{3})+\s+\d[\d,]*\s+[A-Za-z]\w*\s")
"""A row whose sizes are written with commas, as a sheet or a page shows them."""
_STAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
_FIGURES = re.compile(r"(?:\d[\d.]*(?:e[+-]?\d+)?|N/A)(?:\s+(?:\d[\d.]*(?:e[+-]?\d+)?|N/A))*", re.IGNORECASE)
_DEVICE = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d{1,6})\s+\[([0-9a-fA-Fx:.]+)\]\s+(.*\S)"
)
_SETTINGS = re.compile(r"# nThread (\d{1,6}) nGpus (\d{1,6})")
_INFO_GROUP = re.compile(r"comm 0x[0-9a-f]+ rank \d+ nRanks ([1-9]\d{0,6}) nNodes ([1-9]\d{0,6})")
_COMMAND = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoallv|alltoall|all_to_all|broadcast|reduce|sendrecv|gather|scatter"
    r"|hypercube)_perf(?:_mpi)?\b"
)
_CARDS = re.compile(r"\bNCCL_IB_HCA(?:=| set by environment to )[\"']?=?(\w+(?::\d)?(?:,\w+(?::\d)?)+)")
_LAUNCHERS = re.compile(r"\b(srun|SBATCH|salloc|mpirun|mpiexec|mpiexec\.hydra|orterun|prterun)\b")
_PROCESSES = {"mpi": ("-np", "-n", "-c", "--np"), "slurm": ("-n", "--ntasks")}
_PER_HOST = {
    "mpi": ("-N", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost"),
    "slurm": ("--ntasks-per-node", "--tasks-per-node"),
}
_HOSTS = {"mpi": (), "slurm": ("-N", "--nodes")}
_NAMES = {"alltoall": "all_to_all", "alltoallv": "all_to_all_v", "sendrecv": "send_recv"}


def parse_log(text: str, where: str) -> tuple[LogTable, ...]:
    """Every table of a log; InputError when there is none."""
    tables = [_from_json(text, where)] if text.lstrip()[:1] == "{" else _from_text(text)
    filled = tuple(table for table in tables if table.rows)
    if not filled:
        raise InputError(f"{where}: no row of a bandwidth table in it; {EXPECTED}")
    for table in filled:
        table.complete(where)
    return filled


def _from_text(text: str) -> list[LogTable]:
    tables = [LogTable()]
    per_iteration = False
    for line in _whole_lines(text):
        row = _ROW.search(_STAMP.sub("", line.rstrip(" \t|")))
        comment = line[line.find("#") :].strip() if "#" in line else ""
        per_iteration = "per-iteration" in comment if "out-of-place" in comment else per_iteration
        values, cut = _rows(row[1], tables[-1].rows[-1:], per_iteration) if row else ([], "")
        if values or cut:
            table = _continued(tables, values) if values else tables[-1]
            table.rows += values
            table.cut += [cut] * bool(cut)
        elif line.split()[-1:] in (["..."], ["…"]):
            tables[-1].elided = True
        elif comment.startswith("# Avg bus bandwidth"):
            tables[-1].average_gb_s = _number(next(iter(comment.partition(":")[2].split()), ""))
        elif "test concluded" not in line:
            _note(tables, line, comment)
    return tables


def _whole_lines(text: str) -> Iterator[str]:
    """Lines without launchers' tags; a command or a row that goes on in the next line is one."""
    before = ""
    for raw in text.splitlines():
        line = _TAG.sub(" ", raw.replace("|", " ") if raw.count("|") > 8 else raw).rstrip()
        if _THOUSANDS.search(line):
            line = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", line)
        if before.endswith("\\"):
            before = before[:-1] + line
        elif before and _FIGURES.fullmatch(line.strip()) and _ROW.search(before + " "):
            before += " " + line
        else:
            yield before
            before = line
    yield before


def _note(tables: list[LogTable], line: str, comment: str) -> None:
    """Take what a line beside the rows says of the table that it belongs to: the next one, once a table has rows."""
    command, device = _COMMAND.search(line), _DEVICE.search(line)
    starts = comment.startswith(
        ("# nThread", "# Using devices", "# Collective test starting", "# nccl-tests version")
    )
    label = None if comment else NODES.search(line)
    last = now = tables[-1]
    if last.rows and (command or device or starts or label or "out-of-place" in comment):
        now = LogTable(run=last.run + 1)
        tables.append(now)
        if label:
            now.collective, now.how = last.collective, last.how
    now.titled |= "out-of-place" in comment
    if command:
        now.collective, now.how = _NAMES.get(command[1], command[1]), "its command"
    facts = launched(line) if not comment or "SBATCH" in comment else {}
    if settings := _SETTINGS.match(comment):
        facts["ranks_per_process"] = int(settings[1]) * int(settings[2])
    if group := _INFO_GROUP.search(line):
        facts |= {"nccl_ranks": int(group[1]), "nccl_hosts": int(group[2])}
    if cards := _CARDS.search(line):
        facts["cards"] = cards[1].count(",") + 1
    now.launch = now.launch | facts
    now.crosses_hosts |= "NCCL INFO" in line and " via NET/" in line
    if label and not now.rows:
        now.label_hosts = int(label[1])
    if device and len(device[1]) < 7:
        now.devices.append(_device(*device.groups()))


def _device(rank: str | int, host: str, device: str | int, bus: str, name: str) -> LoggedDevice:
    return LoggedDevice(rank=int(rank), host=str(host), device=int(device), bus=str(bus), name=str(name))


def _continued(tables: list[LogTable], rows: list[Row]) -> LogTable:
    """The table that rows belong to: one of another type, operation or root, or one that begins again, is a new one."""
    last = tables[-1]
    if last.rows:
        before, now = last.rows[-1], rows[0]
        other = (before.dtype, before.redop, before.root) != (now.dtype, now.redop, now.root)
        alone = now.busbw_gb_s == 0 and now.algbw_gb_s > 0  # processes of one rank print over each other
        if other or (now.bytes < before.bytes and not alone):
            tables.append(replace(last, rows=[], average_gb_s=None, elided=False))
            last.titled = False  # the average comes after the last table of a run
    return tables[-1]


def _rows(line: str, before: list[Row], per_iteration: bool) -> tuple[list[Row], str]:
    """The modes of a row, and what was cut off of it; neither where it is no row. `before`: the row before it."""
    size, count, dtype, *rest = line.split()
    redop = rest.pop(0) if rest and rest[0].isalpha() else None
    rooted = before[0].root is not None if before else len(rest) % 4 == 1
    root = None
    if rest and (rooted or rest[0] == "-1") and re.fullmatch(r"-?\d{1,6}", rest[0]):
        root = int(rest.pop(0))
    wide = 8 if per_iteration and len(rest) % 8 == 0 else 4
    modes, over, cut = [rest[k : k + 4] for k in range(0, len(rest), wide)], len(rest) % wide, ""
    if over:
        if (
            per_iteration
            or len(rest) > 8
            or not before
            or not element_bytes(dtype)
            or None in map(_number, rest[:-1])
        ):
            return [], ""
        last = modes.pop()
        checked = over == 3 and _WHOLE.fullmatch(last[2])
        modes += [[*last, "N/A"]] * bool(checked)
        what = f"{MODES[len(rest) // 4]} figures are" if not checked else f"{MODES[len(rest) // 4]} check is"
        cut = f"the row of {format_bytes(int(size))} is cut off: its {what} not there"
    if len(modes) > 2 or not (modes or cut):
        return [], ""
    rows = []
    only_in_place = len(modes) == 1 and not cut and _IN_PLACE.match(line)
    for mode, values in zip(MODES[1:] if only_in_place else MODES, modes, strict=False):
        if {word.lower().strip("-") for word in values} & {"nan", "inf"}:
            cut = NO_NUMBER.format(format_bytes(int(size)), mode)
            continue
        time, algbw, busbw, error = map(_number, values)
        if time is None or algbw is None or busbw is None or (error is None and values[3] != "N/A"):
            return [], ""
        rows.append(
            Row(
                bytes=int(size),
                count=int(count),
                mode=mode,
                dtype=dtype,
                redop=redop,
                root=root,
                time_us=time,
                algbw_gb_s=algbw,
                busbw_gb_s=busbw,
                rounded_gb_s=_half_digit(values[2]),
                wrong=None if error is None else _wrong(error, dtype),
            )
        )
    return rows, cut


def _wrong(error: float, dtype: str) -> int | None:
    """Wrong values. Of the older `error` column, the largest deviation: 1 above its bound, None if that is not known.

    The bound is that of nccl-tests before 2.13 (common.cu): 1e-2, 1e-5 or 1e-12 by the element's size, times the ranks
    less 1, which a row does not have.
    """
    if error.is_integer():
        return int(error)
    least = {2: 1e-2, 4: 1e-5, 8: 1e-12}.get(element_bytes(dtype) or 4, 1e-5)
    return 0 if error <= least else 1 if error > least * RANKS_MAX else None


RANKS_MAX = 2**14


def _half_digit(word: str) -> float:
    """Half of a printed figure's last digit: nccl-tests prints two decimals, or fewer where they do not fit."""
    mantissa, _, exponent = word.lower().partition("e")
    return float(0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])))


def _number(word: str) -> float | None:
    if len(word) > 24 or not re.fullmatch(r"\d+(\.\d*)?(e[+-]?\d{1,3})?", word, re.ASCII):
        return None
    value = float(word)
    return value if math.isfinite(value) and value < 1e18 else None


def _from_json(text: str, where: str) -> LogTable:
    """The file of -J: its environment is not looked at. A process lists its first device alone."""
    try:
        document = json.loads(text)
        config, results = document["config"], document["results"]
        per_process = int(config["nthreads"]) * int(config["ngpus"])
        keys = ("rank", "hostname", "device", "device_hex", "device_info")
        devices = [
            _device(*(each[key] for key in keys))
            for each in config.get("devices") or document.get("devices") or ()
        ]
        rows = [row for result in results for row in _json_rows(result)]
        real = [row for row in rows if all(map(math.isfinite, (row.time_us, row.algbw_gb_s, row.busbw_gb_s)))]
        words = [str(word) for word in document.get("args", ())]
        average = (document.get("average_bus_bandwidth") or {}).get("bandwidth")
        average_gb_s = None if average is None else float(average)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{where}: not the whole of what -J of nccl-tests writes ({type(error).__name__}: {error}); {EXPECTED}"
        ) from error
    command = _COMMAND.search(words[0]) if words else None
    table = LogTable(devices=devices, rows=real, launch={"ranks_per_process": per_process})
    table.cut = [NO_NUMBER.format(format_bytes(r.bytes), r.mode) for r in rows if r not in real]
    table.average_gb_s = average_gb_s
    if command:
        table.collective, table.how = _NAMES.get(command[1], command[1]), "its command"
    return table


def _json_rows(result: dict[str, Any]) -> Iterator[Row]:
    for mode, key in zip(MODES, ("out_of_place", "in_place"), strict=True):
        if (values := result.get(key)) is not None:
            wrong = values["nwrong"]
            time, algbw, busbw = (
                float(v)
                for v in (values.get("time", values.get("cpu_time")), values["alg_bw"], values["bus_bw"])
            )
            if min(time, algbw, busbw) < 0:
                raise ValueError(f"a figure of {result['size']} bytes is below zero")
            yield Row(
                bytes=int(result["size"]),
                count=int(result["count"]),
                mode=mode,
                dtype=str(result["type"]),
                redop=str(result["redop"]),
                root=int(result["root"]),
                time_us=time,
                algbw_gb_s=algbw,
                busbw_gb_s=busbw,
                rounded_gb_s=5e-7,
                wrong=None if wrong is None else int(wrong),
            )


def launched(line: str) -> dict[str, int]:
    """What a command tells, as LogTable.launch has it: processes, hosts, processes on each, ranks in each."""
    launcher, test = _LAUNCHERS.search(line), re.search(r"\S*_perf(?:_mpi)?(?=\s|$)", line)
    if launcher is None and test is None:
        return {}
    facts: dict[str, int] = {}
    if launcher is not None:
        kind = "slurm" if launcher[1] in ("srun", "SBATCH", "salloc") else "mpi"
        words = _options(line[launcher.end() : test.start() if test else len(line)])
        facts |= _first(words, "processes", _PROCESSES[kind])
        facts |= _first(words, "per_host", _PER_HOST[kind]) | _first(words, "hosts", _HOSTS[kind])
        mapped = re.search(r"ppr:(\d{1,4}):node", line)
        if mapped:
            facts["per_host"] = int(mapped[1])
        listed = next((words[k] for k in ("-H", "-host", "--host", "-hosts", "--hosts") if k in words), "")
        if kind == "mpi" and listed:
            slots = [int(s) if (s := part.partition(":")[2]).isdigit() else 1 for part in listed.split(",")]
            facts.setdefault("processes", sum(slots))
            # mpirun fills a host's slots before it goes to the next one.
            used = next((k for k in range(1, len(slots)) if sum(slots[:k]) >= facts["processes"]), len(slots))
            facts.setdefault("hosts", used)
    if test is not None:
        words = _options(line[test.end() :])
        each = [_first(words, "n", names).get("n", 1) for names in (("-g", "--ngpus"), ("-t", "--nthreads"))]
        facts["ranks_per_process"] = each[0] * each[1]
        facts["alone"] = int(launcher is None)
    return facts


def _options(text: str) -> dict[str, str]:
    """Options and their values, also those that are joined by `=` or, after one letter, by nothing (`-N2`)."""
    words = re.sub(r"(--[\w-]+)=", r"\1 ", text).split()
    words = [part for w in words for part in (re.findall(r"^(-[A-Za-z])(\d+)$", w) or [(w,)])[0]]
    return {w: v for w, v in zip(words, [*words[1:], ""], strict=False) if w.startswith("-")}


def _first(words: dict[str, str], field: str, names: Sequence[str]) -> dict[str, int]:
    value = next((words[name] for name in names if name in words), "")
    return {field: int(value)} if re.fullmatch(r"[1-9]\d{0,6}", value) else {}
