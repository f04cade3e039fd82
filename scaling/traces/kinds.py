"""Which tool wrote a file that `scaling trace` is given, by its first bytes."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from scaling.errors import InputError
from scaling.reading import TRACE_BYTES_MAX, RefusedError, open_file

PROFILER, FLIGHT, INSPECTOR = "profiler", "flight_recorder", "nccl_inspector"
NAMES = {
    PROFILER: "traces of the profiler",
    FLIGHT: "dumps of the flight recorder",
    INSPECTOR: "records of NCCL Inspector",
}
HEAD_BYTES = 4096
FILES_MAX = 100_000
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
    except (OSError, RefusedError):
        return None
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, HEAD_BYTES)
        except zlib.error:
            return None
    if head[:1] == b"\x80":
        return FLIGHT
    return next((kind for kind, signs in _SIGNS if any(sign in head for sign in signs)), None)


def find(paths: Iterable[str]) -> tuple[str, list[Path]]:
    """The kind of the files, and the files; in folders all of a known kind, at any depth.

    InputError without any, and where they are of several kinds.
    """
    found: dict[Path, str] = {}
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = _inside(path)
            if not inside:
                raise InputError(
                    f"{path}: no trace in this folder; files that end in .json or .json.gz, or records of NCCL "
                    "Inspector are expected"
                )
            found.update(inside)
        elif path.exists():
            found[path] = kind_of(path) or PROFILER
        else:
            raise InputError(
                f"{path}: no such file or folder; a PyTorch profiler trace or a folder of them is expected, or records "
                "of NCCL Inspector"
            )
    kinds = Counter(found.values())
    if len(kinds) > 1:
        told = ", ".join(f"{count} {NAMES[kind]}" for kind, count in kinds.most_common())
        raise InputError(f"{told}: one kind in a call is expected")
    return next(iter(kinds)), list(found)


def _inside(folder: Path) -> dict[Path, str]:
    """Files of a folder by kind; where several kinds lie side by side, all of them."""
    known: dict[Path, str] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        kind = kind_of(path)
        if kind == FLIGHT and not _OF_A_RANK.search(path.name):
            kind = None  # another program's pickle
        if kind is None and path.name.endswith(_SUFFIXES):
            kind = PROFILER  # a trace that is damaged at its beginning is named, not passed over
        if kind is not None:
            known[path] = kind
        if len(known) > FILES_MAX:
            raise InputError(f"{folder}: more than {FILES_MAX} files; name the ones of one job")
    return known
