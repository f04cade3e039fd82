"""Rows of one table that come piece by piece: in memory while they are few, in files once they are many."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import polars as pl

from scaling.records.frames import Frame

TABLE_SCHEMA = "1"
"""Version of the derived tables, kept in each Parquet file's metadata."""

MEMORY_ROWS = 500_000
"""Beyond these rows, a pile goes to files: of blocks, some 90 MB."""
FILE_ROWS = 200_000
"""Rows of a file."""
GROUP_ROWS = 4_096
"""Rows of a row group; a selection reads those whose smallest and largest values allow it."""


@dataclass(slots=True)
class Scratch:
    """A folder for files that lie there while a run's tables are used; it is made when the first one is written."""

    folder: Path
    """Where it is made, if this user may write there."""
    kept: TemporaryDirectory[str] | None = None

    @property
    def path(self) -> Path:
        """The folder. OSError where it cannot be made."""
        if self.kept is None:
            writable = os.access(self.folder, os.W_OK)
            self.kept = TemporaryDirectory(prefix=".tables-", dir=self.folder if writable else None)
        return Path(self.kept.name)


@dataclass(slots=True)
class Pile:
    """Rows of one table while they come."""

    schema: Mapping[str, Any]
    scratch: Scratch | None
    """None: all rows stay in memory."""
    order: Sequence[str] = ()
    """Columns by which the rows of a file are sorted, so that a selection by them reads few of its row groups."""
    _kept: list[pl.DataFrame] = field(default_factory=list)
    _rows: int = 0
    """Those in memory."""
    _files: list[Path] = field(default_factory=list)

    def add(self, frame: pl.DataFrame) -> None:
        """More rows, with the columns of the schema. OSError where they cannot be written."""
        self._kept.append(frame)
        self._rows += frame.height
        if self.scratch is not None and self._rows > (FILE_ROWS if self._files else MEMORY_ROWS):
            self._write(self.scratch)

    def finish(self) -> Frame:
        """All rows, as they came; in files, those of each file in its order."""
        if not self._files or self.scratch is None:
            return pl.concat([pl.DataFrame(schema=self.schema), *self._kept])
        if self._rows:
            self._write(self.scratch)
        return pl.scan_parquet(self._files, glob=False)

    def _folder(self, scratch: Scratch) -> Path:
        return self._files[0].parent if self._files else Path(mkdtemp(dir=scratch.path))

    def _write(self, scratch: Scratch) -> None:
        whole = pl.concat(self._kept)
        self._kept.clear()
        self._rows = 0
        for first in range(0, whole.height, FILE_ROWS):
            rows = whole.slice(first, FILE_ROWS)
            path = self._folder(scratch) / f"{len(self._files):06}.parquet"
            write_parquet(rows.sort(self.order) if self.order else rows, path, GROUP_ROWS)
            self._files.append(path)


def write_parquet(frame: Frame, path: Path, group_rows: int | None = None) -> None:
    """Write a table; OSError where that fails. `group_rows`: rows of a row group, by default as polars has them."""
    metadata = {"schema": TABLE_SCHEMA}
    try:
        if isinstance(frame, pl.DataFrame):
            frame.write_parquet(path, compression="lz4", metadata=metadata, row_group_size=group_rows)
        else:
            frame.sink_parquet(path, compression="lz4", metadata=metadata, row_group_size=group_rows)
    except pl.exceptions.PolarsError as error:  # polars has one error for all that the system may report
        full = shutil.disk_usage(path.parent).free < 2**20
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error
