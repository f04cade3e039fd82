"""Settings and environment facts that differ between two runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaling.analysis.results import SettingDifference
from scaling.records import codec
from scaling.spec.environment import VARIABLE, is_private, is_secret
from scaling.spec.plan import Plan

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
    found = [*_unequal(*settings, of="settings"), *_unequal(*facts, of="environment")]
    said = {item.key for item in found if item.of == "settings"}
    return tuple(x for x in found if x.of == "settings" or x.key not in said)


def telling(settings: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The fewest settings that tell runs apart, the best known first; those that follow from others are left out."""
    differ = [k for k in dict.fromkeys(k for one in settings for k in one) if _values(settings, [k]) > 1]
    differ.sort(key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    kept: list[str] = []
    for key in differ:
        if _values(settings, [*kept, key]) > _values(settings, kept):
            kept.append(key)
    return tuple(kept)


def _values(settings: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    """How many different runs these settings show."""
    return len({tuple(one.get(key) for key in keys) for one in settings})


def settings_of(plan: Plan) -> dict[str, str]:
    """A run's settings as overrides name them, as text; without seeds, tracking, prices and secrets."""
    spec = {k: v for k, v in codec.encode(plan.spec).items() if k not in _NOT_SETTINGS}
    named = {k.replace("model.args.", "model.").replace("data.args.", "data."): v for k, v in _flat(spec)}
    return {k.removesuffix(".name"): v for k, v in named.items() if k != _PROSE and not _secret(k)}


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    return {
        k: v
        for k, v in _flat(environment)
        if k not in _FACTS_IN_SETTINGS and not is_private(k) and not _secret(k)
    }


def _secret(key: str) -> bool:
    return key.startswith(_VARIABLES) and is_secret(key)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)


def _unequal(base: dict[str, str], other: dict[str, str], *, of: str) -> Iterator[SettingDifference]:
    for key in dict.fromkeys([*base, *other]):
        a, b = base.get(key), other.get(key)
        if a != b:
            yield SettingDifference(of=of, key=key, base=a, other=b)
