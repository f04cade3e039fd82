"""Runs from Python: load, compare and predict, as the verbs of the same names do, without printing.

`scaling` itself exports these names, and docs/api.md shows them at work.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import polars as pl

from scaling.analysis.compare.cases import Prices
from scaling.analysis.compare.runs import compare as compared
from scaling.analysis.compare.runs import with_split
from scaling.analysis.compare.sweep import Member, alike, sweep
from scaling.analysis.network.ring import NoPathError
from scaling.analysis.predict.change import Source
from scaling.analysis.predict.predictions import predictions
from scaling.analysis.predict.sources import read_sources
from scaling.analysis.results import Analysis, Comparison, Point, Prediction, Sweep
from scaling.analysis.strategies import of_strategy
from scaling.cli.mesh_prediction import predict_meshes
from scaling.cli.pipeline import read_analysis, read_tables
from scaling.config.compose import changed
from scaling.config.config_dir import require_readable
from scaling.config.whatif import to_whatif
from scaling.errors import InputError
from scaling.records.access import LATEST, find_run
from scaling.records.check import checked
from scaling.records.facts import as_recorded
from scaling.records.launch import Launches
from scaling.records.rank import SCHEMAS
from scaling.records.run import read_config, read_plan
from scaling.records.tables import Tables, collect
from scaling.report.brief import brief, brief_html
from scaling.spec.environment import MACHINE
from scaling.spec.plan import Plan

_MACHINE = (*MACHINE, "hostname", "kernel", "torch")
"""Facts of rank 0 by which two runs are taken to have used the same machine."""


class Run:
    """A measured run. Its parts are read from the run's folder when they are first asked for, and kept."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """A folder that `scaling run`, `scaling trace` or a Probe made, or a file in it; "latest". InputError else."""
        self.folder = find_run(Path(path))
        """The names of all files of the run, such as `run.folder.report_html`."""

    @property
    def path(self) -> Path:
        """The run's folder."""
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
        found = {p.world_size: p for p in self.analysis.points}
        if world_size not in found:
            there = ", ".join(map(str, found)) or "none (see analysis.inference and analysis.training)"
            raise InputError(f"{self.path}: no world size {world_size}; the run has {there}")
        return found[world_size]

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
        return f"Run {self.path}\n{brief(self.analysis)}"

    def _repr_html_(self) -> str:
        return brief_html(self.analysis, str(self.path))

    @cached_property
    def _tables(self) -> Tables:
        return read_tables(self.folder, self.plan)

    def _table(self, name: str) -> pl.DataFrame:
        """A table from its Parquet file, or from the rank files if it is missing or has other columns."""
        path = self.folder.table(name)
        if path.is_file() and "_tables" not in self.__dict__:
            frame = pl.read_parquet(path)
            if set(SCHEMAS[name]) <= set(frame.columns):
                return frame
        if not _has_records(self):
            raise InputError(f"{self.path}: no table {name}, and no rank files to make it from")
        return getattr(self._tables, name)  # type: ignore[no-any-return]

    @cached_property
    def _sources(self) -> tuple[Source, ...]:
        return _read_sources(self, 0)


def tables_of(run: Run) -> Tables:
    """All records of a run, as checked as its analysis has them."""
    return run._tables  # noqa: SLF001  not for users: the frozen API has the tables one by one


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


def compare(base: Run, other: Run, *, usd_per_gpu_hour: Prices = (None, None)) -> Comparison:
    """Compare `other` with `base` at every world size or case that both have, as `scaling compare` does.

    A ratio is one of throughputs: above 1, `other` is faster. Runs that cannot be compared give a Comparison with
    `comparable` False and its `reasons`. `usd_per_gpu_hour`: the prices of both, where they are not the recorded ones.
    """
    return compare_all(base, [other], usd_per_gpu_hour=(usd_per_gpu_hour[0], usd_per_gpu_hour[1]))[0]


def compare_all(
    base: Run, others: Sequence[Run], *, usd_per_gpu_hour: Sequence[float | None] = ()
) -> list[Comparison]:
    """Compare every other run with `base`. `usd_per_gpu_hour`: the base's price, then one for each of the others."""
    prices = usd_per_gpu_hour or (None,) * (1 + len(others))
    facts = _facts(base)
    base_sources = cache(lambda: _split_sources(base, 0))
    found = []
    for other, price in zip(others, prices[1:], strict=True):
        one = compared(
            base.analysis,
            other.analysis,
            base.plan,
            other.plan,
            same_machine=bool(facts) and _machine(facts) == _machine(_facts(other)),
            environments=(facts, _facts(other)),
            prices=(prices[0], price),
        )
        if one.comparable:
            one = with_split(one, base_sources(), _split_sources(other, 1))
        found.append(one)
    return found


def sweep_of(
    runs: Sequence[Run], *, usd_per_gpu_hour: Sequence[float | None] = (), equal_work: bool = False
) -> tuple[Sweep, list[tuple[Comparison, int, int]]]:
    """All runs as one table, and comparisons, each with the numbers of its base and of its other run.

    Every run is compared with the first; with `equal_work`, with the first that did the same work. Prices: one a run.
    """
    facts = [_facts(run) for run in runs]
    members = [
        Member(analysis=run.analysis, plan=run.plan, machine=_machine(known) if known else None)
        for run, known in zip(runs, facts, strict=True)
    ]
    prices = usd_per_gpu_hour or (None,) * len(runs)
    pairs = []
    for first, *others in alike(members) if equal_work else [list(range(len(runs)))]:
        found = compare_all(
            runs[first],
            [runs[k] for k in others],
            usd_per_gpu_hour=[prices[first], *(prices[k] for k in others)],
        )
        pairs += [(one, first, k) for one, k in zip(found, others, strict=True)]
    return sweep(members), pairs


def predict(
    run: Run,
    *overrides: str,
    config_dir: str | os.PathLike[str] | None = None,
    from_world_size: int | None = None,
    anyway: bool = False,
) -> Prediction:
    """Predict `run` under other settings, as `scaling predict` does: `predict(run, "world_sizes=[8,64]")`.

    `config_dir`: a folder with topologies of your own in DIR/topology. `from_world_size`: predict from this measured
    world size only. InputError for settings that cannot be read or predicted, and for a contended run unless `anyway`.
    """
    contended = run.analysis.quality.contended
    if contended and not anyway:
        raise InputError(
            f"{run.path}: is contended ({contended[0]}), so what is predicted from it may be far off; measure it again "
            "on a quiet machine, or add --anyway"
        )
    searched = [] if config_dir is None else _searched(Path(config_dir).expanduser())
    before, after = changed(read_config(run.folder), [*overrides, *searched])
    asked = to_whatif(after, before, run.plan, [o for o in overrides if not o.startswith("hydra.")])
    if asked.parallel is not None:
        return predict_meshes(*counted_tables(run), run.analysis, asked)
    try:
        return predictions(sources_of(run), run.plan, run.analysis, asked, start=from_world_size)
    except NoPathError as error:
        raise InputError(f"world_sizes={list(asked.world_sizes)}: {error}") from error


def _searched(folder: Path) -> list[str]:
    """A folder of configuration files as an override for Hydra."""
    if not folder.is_dir():
        raise InputError(f"--config-dir {folder}: no such folder; one with topology/mine.yaml is expected")
    require_readable(folder)
    return [f"hydra.searchpath=[file://{folder.absolute()}]"]


def counted_tables(run: Run) -> tuple[Tables, Plan]:
    """Checked tables of a run with all its strategies, and the plan as recorded. InputError without rank files."""
    if not _has_records(run):
        raise InputError(f"{run.path}: has no rank files, from which a prediction starts")
    tables = checked(collect(run.folder, run.plan), run.plan)
    return tables, as_recorded(run.plan, tables.blocks)[0]


def _read_sources(run: Run, seed: int) -> tuple[Source, ...]:
    """Measurements that predictions start from, resampled with `seed` added to the run's; none without rank files."""
    if not _has_records(run):
        return ()
    spec = dataclasses.replace(run.plan.spec, seed=run.plan.spec.seed + seed)
    plan = dataclasses.replace(run.plan, spec=spec)
    tables = checked(collect(run.folder, plan), plan)
    return read_sources(*of_strategy(tables, as_recorded(plan, tables.blocks)[0]))


def _split_sources(run: Run, seed: int) -> tuple[Source, ...]:
    """The measurements that split a ratio into compute and fabric. Runs share no rounds, so each has its own seed."""
    return () if run.plan.spec.by_case or run.plan.own_loop else _read_sources(run, seed)


def _has_records(run: Run) -> bool:
    """Whether the rank files exist; traces and kept baselines have none."""
    return any(run.path.glob("launches/*/rank-*.jsonl"))


def _facts(run: Run) -> Mapping[str, Any]:
    """Facts about rank 0's environment; empty where they are not known."""
    environment = Launches(run.folder, run.plan).environment
    return environment.facts if environment else {}


def _machine(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Facts that identify the machine of a run."""
    return tuple(str(facts.get(key)) for key in _MACHINE)
