"""Offline W&B runs read back from their files, with W&B's own message classes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Artifact:
    """One artifact: its type, its metadata and the names of its files."""

    type: str
    metadata: dict[str, Any]
    files: dict[str, Path]


@dataclass
class Logged:
    """One offline run as its file tells."""

    folder: Path
    run: Any = None
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    exit_code: int | None = None

    def table(self, key: str) -> dict[str, Any]:
        """A table that was logged, as {columns, data}."""
        found: dict[str, Any] = json.loads((self.folder / "files" / self.summary[f"{key}.path"]).read_text())
        return found

    def rows(self, key: str) -> list[dict[str, Any]]:
        """The same as a dictionary a row."""
        found = self.table(key)
        return [dict(zip(found["columns"], row, strict=True)) for row in found["data"]]


def read_all(path: Path) -> dict[str, Logged]:
    """Every offline run of a run's folder by the end of its id; the link `latest-run` is no run."""
    runs = [read(p) for p in sorted(path.glob("wandb/offline-run-*/run-*.wandb"))]
    found = {run.run.run_id.rsplit("-", 1)[-1]: run for run in runs}
    assert len(found) == len(runs)
    return found


def read(path: Path) -> Logged:
    """One .wandb file."""
    from wandb.proto.wandb_internal_pb2 import Record

    logged = Logged(path.parent)
    for chunk in _chunks(path.read_bytes()):
        record = Record.FromString(chunk)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            logged.run = record.run
            logged.config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
        elif kind == "config":
            logged.config |= _named(record.config.update)
        elif kind == "history":
            logged.history.append(_named(record.history.item))
        elif kind == "summary":
            logged.summary |= _named(record.summary.update)
        elif kind == "metric":
            logged.metrics[record.metric.name] = record.metric.step_metric
        elif kind == "artifact":
            logged.artifacts[record.artifact.name] = _artifact(record.artifact)
        elif kind == "exit":
            logged.exit_code = record.exit.exit_code
    return logged


def _named(items: Any) -> dict[str, Any]:
    return {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}


def _artifact(record: Any) -> Artifact:
    files = {entry.path: Path(entry.local_path) for entry in record.manifest.contents}
    return Artifact(type=record.type, metadata=json.loads(record.metadata or "{}"), files=files)


def _chunks(data: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log: after 7 bytes of W&B's, blocks of 32 KiB of (crc, length, type, payload)."""
    assert data[:4] == b":W&B"
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, last (2 and 3 are first and middle)
            yield record
            record = b""
