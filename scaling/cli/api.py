"""Compare and predict runs from Python, as the verbs of the same names do, without printing.

`scaling` itself exports compare and predict, and docs/api.md shows them at work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scaling.analysis.compare.cases import Prices
from scaling.analysis.compare.runs import compare as compared
from scaling.analysis.compare.runs import with_split
from scaling.analysis.compare.sweep import Member, alike, sweep
from scaling.analysis.network.ring import NoPathError
from scaling.analysis.predict.change import Source
from scaling.analysis.predict.predictions import predictions
from scaling.analysis.results import Comparison, Prediction, Sweep
from scaling.cli.loaded import Run, counted_tables, sources_of, sources_with
from scaling.cli.mesh_prediction import predict_meshes
from scaling.cli.shown import shown_comparison, shown_prediction
from scaling.config.compose import changed
from scaling.config.config_dir import require_readable
from scaling.config.whatif import to_whatif
from scaling.errors import InputError
from scaling.records.launch import Launches
from scaling.records.run import read_config
from scaling.spec.environment import MACHINE

_MACHINE = (*MACHINE, "hostname", "kernel", "torch")
"""Facts of rank 0 by which two runs are taken to have used the same machine."""


def compare(base: Run, other: Run, *, usd_per_gpu_hour: Prices = (None, None)) -> Comparison:
    """Compare `other` with `base` at every world size or case that both have, as `scaling compare` does.

    A ratio is one of throughputs: above 1, `other` is faster. Runs that cannot be compared give a Comparison with
    `comparable` False and its `reasons`. `usd_per_gpu_hour`: the prices of both, where they are not the recorded ones.
    """
    found = compare_all(base, [other], usd_per_gpu_hour=(usd_per_gpu_hour[0], usd_per_gpu_hour[1]))[0]
    return shown_comparison(found)


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
        return shown_prediction(predict_meshes(*counted_tables(run), run.analysis, asked))
    try:
        found = predictions(sources_of(run), run.plan, run.analysis, asked, start=from_world_size)
    except NoPathError as error:
        raise InputError(f"world_sizes={list(asked.world_sizes)}: {error}") from error
    return shown_prediction(found)


def _searched(folder: Path) -> list[str]:
    """A folder of configuration files as an override for Hydra."""
    if not folder.is_dir():
        raise InputError(f"--config-dir {folder}: no such folder; one with topology/mine.yaml is expected")
    require_readable(folder)
    return [f"hydra.searchpath=[file://{folder.absolute()}]"]


def _split_sources(run: Run, seed: int) -> tuple[Source, ...]:
    """The measurements that split a ratio into compute and fabric. Runs share no rounds, so each has its own seed."""
    return () if run.plan.spec.by_case or run.plan.own_loop else sources_with(run, seed)


def _facts(run: Run) -> Mapping[str, Any]:
    """Facts about rank 0's environment; empty where they are not known."""
    environment = Launches(run.folder, run.plan).environment
    return environment.facts if environment else {}


def _machine(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Facts that identify the machine of a run."""
    return tuple(str(facts.get(key)) for key in _MACHINE)
