"""What two runs were asked and ran on that is not the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scaling import codec
from scaling.analysis.results import SettingDifference
from scaling.plan import Plan
from scaling.secrets import is_secret

_NOT_SETTINGS = ("tracking", "seed", "cost")
_PROSE = "topology.note"
_OF_A_PROCESS = (
    "schema",
    "rank",
    "host",
    "cpus",
    "numa_nodes",
    "device_uuid",
    "device_pci",
    "device",
    "backend",
)
"""Facts of a rank that every process has its own of, or that the settings say already."""
_OF_A_JOB = (
    "env.CUDA_VISIBLE_DEVICES",
    "env.CUDA_DEVICE_ORDINAL",
    "env.SLURM_",
    "env.TORCHELASTIC_",
)
"""Variables that differ from launch to launch."""
_VARIABLES = ("env.", "cluster.env.")


def differing(
    plans: tuple[Plan, Plan], environments: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> tuple[SettingDifference, ...]:
    """Settings (as overrides name them), then facts of rank 0 (env-0.json) that differ.

    Variables whose names smell of secrets are left out.
    """
    settings = [_settings(plan) for plan in plans]
    facts = [_facts(environment) for environment in environments]
    if not all(facts):  # gone, or never there: then nothing is known to differ
        facts = [{}, {}]
    found = [*_unequal(*settings, of="settings"), *_unequal(*facts, of="environment")]
    said = {item.key for item in found if item.of == "settings"}
    return tuple(x for x in found if x.of == "settings" or x.key not in said)


def _settings(plan: Plan) -> dict[str, str]:
    spec = {k: v for k, v in codec.encode(plan.spec).items() if k not in _NOT_SETTINGS}
    named = {k.replace("model.args.", "model.").replace("data.args.", "data."): v for k, v in _flat(spec)}
    return {k.removesuffix(".name"): v for k, v in named.items() if k != _PROSE and not _secret(k)}


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    facts = {k: v for k, v in environment.items() if k not in _OF_A_PROCESS}
    flat = {k.replace("environment.", "env.", 1): v for k, v in _flat(facts)}
    return {k: v for k, v in flat.items() if not k.startswith(_OF_A_JOB) and not _secret(k)}


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
