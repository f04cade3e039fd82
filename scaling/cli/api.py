"""Compare and predict runs from Python, as the verbs of the same names do, without printing.

`scaling` itself exports compare and predict, and docs/api.md shows them at work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling.analysis.compare.differences import Prices
from scaling.analysis.compare.runs import compare as compared
from scaling.analysis.compare.runs import with_split
from scaling.analysis.compare.sweep import Member, alike, sides, sweep, with_allocations
from scaling.analysis.network.curve import NoPathError
from scaling.analysis.predict.change import Source
from scaling.analysis.predict.predictions import predictions
from scaling.analysis.results import Comparison, Prediction, Sweep
from scaling.cli.loaded import Run, ShownComparison, ShownPrediction, shown, sources_of, sources_with
from scaling.cli.simulated_run import from_run
from scaling.config.compose import changed, require_readable
from scaling.config.run import to_whatif
from scaling.errors import InputError
from scaling.reading import without_tilde
from scaling.records.launch import Launches
from scaling.records.run import read_config
from scaling.settings.environment import MACHINE

if TYPE_CHECKING:
    from scaling_simulator.simulate.results import SimulationResults

_MACHINE = (*MACHINE, "hostname", "kernel", "torch")
"""Facts of rank 0 by which two runs are taken to have used the same machine."""


def compare(base: Run, other: Run, *, usd_per_gpu_hour: Prices = (None, None)) -> Comparison:
    """Compare `other` with `base` at every world size or case that both have, as `scaling compare` does.

    A ratio is one of throughputs: above 1, `other` is faster. Runs that cannot be compared give a Comparison with
    `comparable` False and its `reasons`. `usd_per_gpu_hour`: the prices of both, where they are not the recorded ones.
    """
    return shown(_compared([[base], [other]], usd_per_gpu_hour)[0], ShownComparison)


def _compared(sides: Sequence[Sequence[Run]], prices: Sequence[float | None]) -> list[Comparison]:
    """Every other side compared with the first. A side is the runs of equal settings on nodes of their own.

    `prices`: USD per GPU and hour, one a side; None where the recorded one counts.
    """
    (base, *_), *others = sides
    base_members, base_facts = [_member(run) for run in sides[0]], _facts(base)
    base_sources = cache(lambda: _split_sources(base, 0))
    comparisons = []
    for side, price in zip(others, prices[1:], strict=True):
        other, members = side[0], [_member(run) for run in side]
        machine = base_members[0].machine
        comparison = compared(
            base.analysis,
            other.analysis,
            base.plan,
            other.plan,
            same_machine=machine is not None and machine == members[0].machine,
            environments=(base_facts, _facts(other)),
            prices=(prices[0], price),
        )
        comparison = with_allocations(comparison, base_members, members)
        if comparison.comparable:
            comparison = with_split(comparison, base_sources(), _split_sources(other, 1))
        comparisons.append(comparison)
    return comparisons


def sweep_of(
    runs: Sequence[Run], *, usd_per_gpu_hour: Sequence[float | None] = (), equal_work: bool = False
) -> tuple[Sweep, list[tuple[Comparison, int, int]]]:
    """All runs as one table, and comparisons, each with the numbers of its base and of its other run.

    Every run is compared with the first; with `equal_work`, with the first that did the same work. Runs of equal
    settings on nodes of their own are compared as one side. Prices: one a run.
    """
    members = [_member(run) for run in runs]
    prices = usd_per_gpu_hour or (None,) * len(runs)
    pairs = []
    for group in alike(members) if equal_work else [list(range(len(runs)))]:
        numbers = [[group[k] for k in side] for side in sides([members[k] for k in group])]
        if len(numbers) == 1:  # allocations of one side alone are compared with each other
            numbers = [[k] for k in group]
        first, *others = (side[0] for side in numbers)
        comparisons = _compared(
            [[runs[k] for k in side] for side in numbers], [prices[k] for k in (first, *others)]
        )
        pairs += [(pair, first, other) for pair, other in zip(comparisons, others, strict=True)]
    return sweep(members), pairs


def _member(run: Run) -> Member:
    facts = _facts(run)
    return Member(
        analysis=run.analysis,
        plan=run.plan,
        machine=tuple(str(facts.get(key)) for key in _MACHINE) if facts else None,
        nodes=_each(run, "hostname"),
        devices=_each(run, "device_uuid"),
    )


def _each(run: Run, fact: str) -> tuple[str, ...]:
    """The different values of a fact of the ranks, in all launches of the run."""
    launches = Launches(run.folder, run.plan)
    values = (facts.get(fact) for launch in launches for facts in launch.facts.values())
    return tuple(dict.fromkeys(str(value) for value in values if value))


def predict(
    run: Run,
    *overrides: str,
    config_dir: str | os.PathLike[str] | None = None,
    from_world_size: int | None = None,
    anyway: bool = False,
) -> Prediction | SimulationResults:
    """Predict `run` under other settings, as `scaling predict` does: `predict(run, "world_sizes=[8,64]")`.

    `config_dir`: a folder with topologies of your own in DIR/topology. `from_world_size`: predict from this measured
    world size only. InputError for settings that cannot be read or predicted, and for a contended run unless `anyway`.
    Where a strategy is asked for, or the run has a sharded one, the answer is a simulation's (scaling_simulator).
    """
    if simulated(run, overrides):
        require_quiet(run, anyway=anyway)
        outcomes = from_run(str(run.path), overrides)
        if len(outcomes) > 1:
            raise InputError(f"{' '.join(overrides)}: one strategy on one topology is expected here")
        return outcomes[0].results
    searched = (
        [] if config_dir is None else _searched(without_tilde(config_dir, f"--config-dir {config_dir}"))
    )
    before, after = changed(read_config(run.folder), [*overrides, *searched])
    asked = to_whatif(after, before, run.plan, [o for o in overrides if not o.startswith("hydra.")])
    require_quiet(run, anyway=anyway)
    try:
        prediction = predictions(sources_of(run), run.plan, run.analysis, asked, start=from_world_size)
    except NoPathError as error:
        raise InputError(f"world_sizes={list(asked.world_sizes)}: {error}") from error
    return shown(prediction, ShownPrediction)


def simulated(run: Run, overrides: Sequence[str]) -> bool:
    """Whether the simulation answers: a strategy is asked for, or the run has a sharded one."""
    asked = any(word.startswith(("parallel=", "parallel.", "fsdp.")) for word in overrides)
    return asked or any(spec.parallel.sharded for spec in run.plan.spec.strategies)


def require_quiet(run: Run, *, anyway: bool) -> None:
    """InputError for a contended run, unless `anyway`."""
    contended = run.analysis.quality.contended
    if contended and not anyway:
        raise InputError(
            f"{run.path}: is contended ({contended[0]}), so what is predicted from it may be far off; measure it again "
            "on a quiet machine, or add --anyway"
        )


def _searched(folder: Path) -> list[str]:
    """A folder of configuration files as an override for Hydra."""
    if not folder.is_dir():
        raise InputError(f"--config-dir {folder}: no such folder; one with topology/mine.yaml is expected")
    require_readable(folder)
    return [f"hydra.searchpath=[file://{folder.absolute()}]"]


def _split_sources(run: Run, seed: int) -> tuple[Source, ...]:
    """The measurements that split a ratio into compute and fabric. Runs share no rounds, so each has its own seed."""
    return () if run.plan.spec.kind.by_cases or run.plan.kind.followed else sources_with(run, seed)


def _facts(run: Run) -> Mapping[str, Any]:
    """Facts about rank 0's environment; empty where they are not known."""
    environment = Launches(run.folder, run.plan).environment
    return environment.facts if environment else {}
