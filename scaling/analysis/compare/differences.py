"""What two runs differ in and have in common: settings, facts of their machines, cases. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaling.analysis.decompose.loss import usd_per_million
from scaling.analysis.results import (
    Analysis,
    CaseComparison,
    InferenceCase,
    SettingDifference,
    TrainingCase,
    ratio_of,
)
from scaling.analysis.results.machine import MachineGroup
from scaling.analysis.statistics.rounds import among
from scaling.records import files
from scaling.settings.environment import VARIABLE, VERSIONS, is_private, is_secret
from scaling.settings.plan import Plan

_NOT_SETTINGS = ("tracking", "seed", "cost")
_PROSE = "topology.note"
_FIRST = ("model", "topology", "precision", "task", "mode", "batch_per_rank", "accumulation_steps")
"""Settings by which a run is known best."""
_FACTS_IN_SETTINGS = ("device", "backend")
"""Facts of a rank that the settings have already."""
_VARIABLES = (VARIABLE, "cluster.env.")


def differing(
    plans: tuple[Plan, Plan], environments: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> tuple[SettingDifference, ...]:
    """Settings (as overrides name them), then facts of rank 0 (env-0.json, variables as `env.NAME`) that differ.

    Variables that may hold secrets are left out.
    """
    settings = [settings_of(plan) for plan in plans]
    facts = [_facts(environment) for environment in environments]
    if not all(facts):  # one is missing, so no difference is known
        facts = [{}, {}]
    differences = [*_unequal(*settings, kind="settings"), *_unequal(*facts, kind="environment")]
    keys = {item.key for item in differences if item.of == "settings"}
    return tuple(x for x in differences if x.of == "settings" or x.key not in keys)


def telling(settings: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The fewest settings that tell runs apart, the best known first; those that follow from others are left out."""
    differ = [k for k in dict.fromkeys(k for run in settings for k in run) if _values(settings, [k]) > 1]
    differ.sort(key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    kept: list[str] = []
    for key in differ:
        if _values(settings, [*kept, key]) > _values(settings, kept):
            kept.append(key)
    return tuple(kept)


def _values(settings: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    """How many different runs these settings show."""
    return len({tuple(run.get(key) for key in keys) for run in settings})


def settings_of(plan: Plan) -> dict[str, str]:
    """A run's settings as overrides name them, as text; without seeds, tracking, prices and secrets."""
    spec = {k: v for k, v in files.encode(plan.spec).items() if k not in _NOT_SETTINGS}
    named = {k.replace("model.args.", "model.").replace("data.args.", "data."): v for k, v in _flat(spec)}
    return {k.removesuffix(".name"): v for k, v in named.items() if k != _PROSE and not _secret(k)}


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    flat = ((k, v) for k, v in _flat(environment) if k not in _FACTS_IN_SETTINGS)
    return {k: v for k, v in flat if not is_private(k) and not _secret(k)}


def _secret(key: str) -> bool:
    return key.startswith(_VARIABLES) and is_secret(key)


def _flat(tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in files.flat(tree):
        yield key, str(value).lower() if isinstance(value, bool) else str(value)


def _unequal(base: dict[str, str], other: dict[str, str], *, kind: str) -> Iterator[SettingDifference]:
    for key in dict.fromkeys([*base, *other]):
        a, b = base.get(key), other.get(key)
        if a != b:
            yield SettingDifference(of=kind, key=key, base=a, other=b)


Case = InferenceCase | TrainingCase
Prices = tuple[float | None, float | None]
"""USD a GPU-hour, of the base and of the other."""


def compared(base: Analysis, other: Analysis, prices: Prices) -> Iterator[CaseComparison]:
    """Cases of both runs, measured in one of them at least."""
    pairs = [(a, b) for a, b in shared(base, other) if a.samples_per_s or b.samples_per_s]
    for row, beside in pairs:
        ratio = ratio_of(beside.samples_per_s, row.samples_per_s)
        yield CaseComparison(
            world_size=row.world_size,
            batch=row.batch,
            setting=row.setting,
            samples_per_s=(row.samples_per_s, beside.samples_per_s),
            ratio=ratio,
            distinguishable=ratio is not None and among(ratio, len(pairs)).differs_from(1),
            usd_per_million_samples=tuple(
                usd_per_million(case.samples_per_s, row.world_size, price)
                for case, price in zip((row, beside), prices, strict=True)
            ),
        )


def shared(base: Analysis, other: Analysis) -> list[tuple[Case, Case]]:
    """Each case of the base beside the same one of the other."""
    others = {key_of(row): row for row in cases_of(other)}
    return [(row, others[key_of(row)]) for row in cases_of(base) if key_of(row) in others]


def cases_of(run: Analysis) -> list[Case]:
    return [*run.inference, *run.training]


def key_of(row: Case) -> tuple[object, ...]:
    """What a case is, its throughput aside."""
    return (type(row), row.world_size, row.batch, *row.setting.items())


_WORDS = ("cpu", "device_name", *VERSIONS)
_NUMBERS = ("cores", "threads", "device_memory_bytes")


def machines(environments: Mapping[int, Mapping[str, Any]]) -> tuple[MachineGroup, ...]:
    """One machine for all ranks that are alike. `environments`: each rank's flat facts, variables as `env.NAME`."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for rank, facts in sorted(environments.items()):
        alike.setdefault(_machine(facts), []).append(rank)
    groups = []
    for machine, ranks in alike.items():
        hosts = dict.fromkeys(str(environments[rank].get("hostname", "?")) for rank in ranks)
        variables = _shared([environments[rank] for rank in ranks])
        groups.append(
            MachineGroup(hosts=tuple(hosts), ranks=tuple(ranks), environment=variables, **dict(machine))
        )
    return tuple(groups)


def _machine(facts: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What is shown of a rank's machine, by name; None for what is not known."""
    words = ((name, facts.get(name)) for name in _WORDS)
    numbers = ((name, facts.get(name)) for name in _NUMBERS)
    return (
        *((name, None if word is None else str(word)) for name, word in words),
        *((name, number if type(number) is int else None) for name, number in numbers),
    )


def _shared(environments: list[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    first = environments[0]
    return tuple(
        (name.removeprefix(VARIABLE), str(value))
        for name, value in sorted(first.items())
        if name.startswith(VARIABLE)
        and not is_private(name)
        and all(other.get(name) == value for other in environments)
    )
