"""Which tool wrote a file that `scaling trace` is given, by its first bytes; and how to get such files from a job.

Variables: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp and FlightRecorder.hpp, plugins/profiler/inspector of NCCL,
NCCL's user guide, Kineto's and Dynolog's README. /shared stands for a folder that all nodes see.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.errors import InputError
from scaling.reading import LOG_BYTES_MAX, TRACE_BYTES_MAX, RefusedError, open_file

PROFILER, FLIGHT, INSPECTOR, LOG = "profiler", "flight_recorder", "nccl_inspector", "job_log"
NAMES = {
    PROFILER: "traces of the profiler",
    FLIGHT: "dumps of the flight recorder",
    INSPECTOR: "records of NCCL Inspector",
    LOG: "outputs of jobs",
}
HEAD_BYTES = 4096
LOG_HEAD_BYTES = 16 << 20
"""NCCL's lines are looked for in so much of a job's output."""
_LOG_SIGNS = (
    b"NCCL INFO ",
    b"NCCL WARN ",
    b"Watchdog caught collective operation timeout",
    b"ast enqueued ",
    b"watchdog got stuck for ",
)
_PROFILER = "torch.profiler's traces are read (scaling trace --how)"
_LOGS = "nccl-tests' logs are read by scaling import nccl-tests"
_IMPORTED = {
    "nccl-tests": rb'out-of-place|Avg bus bandwidth|"args":\s*\[\s*"[^"]*_perf',
    "topo": rb'(?m)^\s*GPU0\s+GPU1|Link Type between|^(?:ACCESS|LINK TYPE) TABLE:|"link_type"|"\(Topology\) ',
    "nccl-xml": rb"<system\b",
}
_OTHERS = (
    (rb"rocprofiler-sdk-tool", "rocprofv3", _PROFILER),
    (rb"GlobalMetadata|chakra", "a Chakra execution trace", _PROFILER),
    (rb"/device:GPU:\d|XPlane|/host:metadata", "XLA's xplane", _PROFILER),
    (rb"SQLite format 3|nsys", "Nsight Systems", _PROFILER),
    (rb"OSU MPI", "an OSU micro-benchmark", _LOGS),
    (rb"nvbandwidth", "nvbandwidth", _LOGS),
    (rb"RDMA_(Write|Read)|Send BW Test|BW average", "perftest (ib_write_bw)", _LOGS),
)
"""Signs of other tools' files, whose they are, and what is read instead."""
FILES_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a command prints of files that are no profiler's. `complete`: every rank and file is there and whole."""

    lines: tuple[str, ...]
    document: dict[str, Any]
    complete: bool = True


_SUFFIXES = (".json", ".json.gz")
"""What a profiler writes; in a folder only these are taken for damaged traces rather than for other files."""
_OF_A_RANK = re.compile(r"rank[-_ ]?\d|_\d+$|\.json$")
_SIGNS = (
    (PROFILER, (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"', b'"deviceProperties"')),
    (INSPECTOR, (b'"coll_perf"', b'"p2p_perf"', b'"inspector_output_format_version"')),
    (FLIGHT, (b'"pg_config"', b'"pg_status"', b'"collective_seq_id"', b'"comm_lib_version"', b'"record_id"')),
)


def kind_of(path: Path) -> str | None:
    """The kind of a file; None for any other, and for one that cannot be read."""
    try:
        with open_file(path, TRACE_BYTES_MAX) as file:
            head = file.read(HEAD_BYTES)
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, HEAD_BYTES)
    except (OSError, RefusedError, zlib.error):
        return None
    if head[:1] == b"\x80":
        return FLIGHT
    return next((kind for kind, signs in _SIGNS if any(sign in head for sign in signs)), None)


def other_tool(head: bytes) -> str | None:
    """Whose file this is, and what to do instead; None where nothing here tells."""
    imports = (
        f"scaling import {kind} FILE reads it" for kind, sign in _IMPORTED.items() if re.search(sign, head)
    )
    others = (f"the file of {name}; {then}" for sign, name, then in _OTHERS if re.search(sign, head))
    return next(imports, None) or next(others, None)


def _unknown(path: Path) -> str:
    """The kind of a named file that no head tells: a job's output, else a trace that may be damaged."""
    try:
        with open_file(path, LOG_BYTES_MAX) as file:
            text = file.read(LOG_HEAD_BYTES)
    except (OSError, RefusedError):
        return PROFILER
    if any(sign in text for sign in _LOG_SIGNS):
        return LOG
    if whose := other_tool(text[:HEAD_BYTES]):
        raise InputError(f"{path}: {whose}")
    return PROFILER


def find(paths: Iterable[str]) -> tuple[str, list[Path]]:
    """The kind of the files, and the files; in folders all of a known kind, at any depth.

    InputError without any, and where they are of several kinds.
    """
    by_path: dict[Path, str] = {}
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = _inside(path)
            if not inside:
                raise InputError(
                    f"{path}: no trace in this folder; files that end in .json or .json.gz, or records of NCCL "
                    "Inspector are expected"
                )
            by_path.update(inside)
        elif path.exists():
            by_path[path] = kind_of(path) or _unknown(path)
        else:
            raise InputError(
                f"{path}: no such file or folder; a PyTorch profiler trace or a folder of them is expected, or records "
                "of NCCL Inspector"
            )
    kinds = Counter(by_path.values())
    if len(kinds) > 1:
        told = ", ".join(f"{count} {NAMES[kind]}" for kind, count in kinds.most_common())
        raise InputError(f"{told}: one kind in a call is expected")
    return next(iter(kinds)), list(by_path)


def _inside(folder: Path) -> dict[Path, str]:
    """Files of a folder by kind; where several kinds lie side by side, all of them."""
    by_path: dict[Path, str] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        kind = kind_of(path)
        if kind == FLIGHT and not _OF_A_RANK.search(path.name):
            kind = None  # another program's pickle
        if kind is None and path.name.endswith(_SUFFIXES):
            kind = PROFILER  # a trace that is damaged at its beginning is named, not passed over
        if kind is not None:
            by_path[path] = kind
        if len(by_path) > FILES_MAX:
            raise InputError(f"{folder}: more than {FILES_MAX} files; name the ones of one job")
    return by_path


_LINES = (
    (
        "a job that hangs",
        "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=/shared/fr/nccl_trace_rank_",
        "torchfrtrace --prefix nccl_trace_rank_ /shared/fr reads a dump of each rank "
        "(torch before 2.9 has other names for the first and the last: "
        "TORCH_NCCL_TRACE_BUFFER_SIZE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE)",
    ),
    (
        "which way NCCL goes, and who waits in a hang",
        "NCCL_DEBUG=INFO, and keep what every rank prints: srun --output=job.%t.out, torchrun --redirects 3",
        "scaling trace job.*.out",
    ),
    (
        "its dump now, not at the time-out",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_ beside them, then on each node: "
        "for p in /tmp/fr_*; do echo 1 > $p; done",
        "the same dumps",
    ),
    (
        "the slow rank, and the bandwidth by size",
        "NCCL_PROFILER_PLUGIN=/path/libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1 "
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000 NCCL_INSPECTOR_DUMP_DIR=/shared/inspector",
        "NCCL Inspector's records, a file a process (RCCL: librccl-profiler-inspector.so)",
    ),
    (
        "where a step's time goes",
        "KINETO_USE_DAEMON=1 (dynolog on the nodes), then: dyno --hostname NODE gputrace --log-file /shared/trace.json",
        "a profiler trace a rank; in code: torch.profiler.profile(on_trace_ready=tensorboard_trace_handler(DIR))",
    ),
    (
        "what the links reach",
        "srun -N 2 --ntasks-per-node=8 --gpus-per-node=8 --mpi=pmix all_reduce_perf_mpi -b 8 -e 8G -f 2 "
        "> 2node_all_reduce.log; without MPI, on one node: all_reduce_perf -g 8 -b 8 -e 8G -f 2 > all_reduce.log",
        "scaling import nccl-tests 2node_all_reduce.log; scaling trace INSPECTOR --beside 2node_all_reduce.log",
    ),
    (
        "how the devices are connected",
        "NCCL_TOPO_DUMP_FILE=/shared/topo.xml, or: srun -N 1 nvidia-smi topo -m > topo.txt",
        "scaling import nccl-xml topo.xml, scaling import topo topo.txt",
    ),
)

HOW = tuple(line for what, get, then in _LINES for line in (f"# {what}", f"    {get}", f"    -> {then}"))
"""For each kind of file: what it answers, what to set or run, and what comes of it."""
