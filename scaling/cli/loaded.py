"""A run from Python: its plan, its analysis and its tables, read when they are first asked for.

`scaling` itself exports Run and load, and docs/api.md shows them at work. Results are shown in a shell as the terminal
shows them, instead of every field.
"""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import polars as pl
from rich.console import Console

from scaling.analysis.analyze import of_strategies
from scaling.analysis.predict.change import Source
from scaling.analysis.predict.sources import read_sources
from scaling.analysis.results import Analysis, Comparison, Point, Prediction
from scaling.analysis.run import read_tables
from scaling.cli.pipeline import read_analysis
from scaling.errors import InputError
from scaling.records.check import read_checked
from scaling.records.paths import LATEST, find_run
from scaling.records.run import read_plan
from scaling.records.tables import SCHEMAS, Tables, in_memory, read_published
from scaling.report.documents import comparison as comparison_report
from scaling.report.documents import prediction as prediction_report
from scaling.report.documents import run as run_report
from scaling.report.model import Document
from scaling.report.terminal import draw
from scaling.settings.plan import Plan


class Run:
    """A measured run. Its parts are read from the run's folder when they are first asked for, and kept."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """A folder that `scaling run`, `scaling trace` or a Probe made, or a file in it; "latest". InputError else."""
        self.folder = find_run(Path(path))
        """The names of all files of the run, such as `run.folder.report_html`."""

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def plan(self) -> Plan:
        """What was to run: the settings in `plan.spec`, a trial for each world size. InputError for a damaged file."""
        return read_plan(self.folder)

    @cached_property
    def analysis(self) -> Analysis:
        """The whole of analysis.json; made from the rank files where it is missing.

        InputError where it cannot be read; ScalingError where nothing was measured.
        """
        try:
            return read_analysis(self.folder)
        except OSError as error:
            raise InputError(f"{error.filename or self.path}: {error.strerror}") from error

    def point(self, world_size: int) -> Point:
        """The results at one world size. InputError where the run has none of it."""
        points = {p.world_size: p for p in self.analysis.points}
        if world_size not in points:
            sizes = ", ".join(map(str, points)) or "none (see analysis.inference and analysis.training)"
            raise InputError(f"{self.path}: no world size {world_size}; the run has {sizes}")
        return points[world_size]

    @property
    def steps(self) -> pl.DataFrame:
        """A row for each timed step and rank. Stamps are ns on rank 0's clock, durations ns."""
        return self._table("steps")

    @property
    def buckets(self) -> pl.DataFrame:
        """A row for each gradient bucket, step and rank: bytes, and when it was ready, launched and done, ns."""
        return self._table("buckets")

    @property
    def fabric(self) -> pl.DataFrame:
        """A row for each message of the size sweep and rank: bytes, launched and done, ns."""
        return self._table("fabric")

    @property
    def blocks(self) -> pl.DataFrame:
        """A row for each block of steps and rank: arm, round, begin and end, CPU time, all times in ns."""
        return self._table("blocks")

    def __repr__(self) -> str:
        return f"Run {self.path}\n{_drawn(run_report.document(self.analysis, self.plan), verbose=False)}"

    @cached_property
    def _tables(self) -> Tables:
        return read_tables(self.folder, self.plan)

    def _table(self, name: str) -> pl.DataFrame:
        """A table from its Parquet file; from the rank files where that is missing, damaged or has other columns."""
        if self.folder.table(name).exists() and "_tables" not in self.__dict__:
            with contextlib.suppress(pl.exceptions.PolarsError, OSError):  # a damaged file is made again
                frame = read_published(self.folder, name)
                if set(SCHEMAS[name]) <= set(frame.columns):
                    return frame
        if not has_records(self):
            raise InputError(
                f"{self.path}: no table {name} that can be read, and no rank files to make it from"
            )
        return in_memory(getattr(self._tables, name))

    @cached_property
    def _sources(self) -> tuple[Source, ...]:
        return sources_with(self, 0)


def sources_of(run: Run) -> tuple[Source, ...]:
    """What predictions start from: one for each measured world size above 1."""
    return run._sources  # noqa: SLF001


def load(path: str | os.PathLike[str] = LATEST) -> Run:
    """Open a run by its folder, or by a file in it; "latest" is the newest run below ./runs.

    Reads the plan and the analysis, so that a damaged run fails here. InputError with one line; ScalingError where
    the run measured nothing.
    """
    run = Run(path)
    _ = run.plan, run.analysis
    return run


def sources_with(run: Run, seed: int) -> tuple[Source, ...]:
    """Measurements that predictions start from, resampled with `seed` added to the run's; none without rank files."""
    if not has_records(run):
        return ()
    spec = replace(run.plan.spec, seed=run.plan.spec.seed + seed)
    plan = replace(run.plan, spec=spec)
    tables = read_checked(run.folder, plan)
    return read_sources(of_strategies(tables, plan)[0])


def has_records(run: Run) -> bool:
    """Whether the rank files exist; traces and kept baselines have none."""
    return any(run.path.glob("launches/*/rank-*.jsonl"))


WIDTH = 100
"""Characters of a line."""


class ShownComparison(Comparison):
    """A Comparison whose repr is what `scaling compare` prints."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _drawn(comparison_report.document(self))


class ShownPrediction(Prediction):
    """A Prediction whose repr is what `scaling predict` prints."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _drawn(prediction_report.document(self))


T = TypeVar("T", ShownComparison, ShownPrediction)


def shown(result: Comparison | Prediction, kind: type[T]) -> T:
    """The result as one that is shown as the terminal shows it."""
    return kind(**{field.name: getattr(result, field.name) for field in fields(result)})


def _drawn(document: Document, *, verbose: bool = True) -> str:
    out = io.StringIO()
    draw(Console(file=out, width=WIDTH, color_system=None), document, verbose=verbose)
    return out.getvalue().rstrip()
