"""What the ranks ran on: those that are alike are grouped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.analysis.results.machine import MachineGroup
from scaling.spec.environment import VARIABLE, VERSIONS, is_private

_WORDS = ("cpu", "device_name", *VERSIONS)
_NUMBERS = ("cores", "threads", "device_memory_bytes")


def machines(environments: Mapping[int, Mapping[str, Any]]) -> tuple[MachineGroup, ...]:
    """One machine for all ranks that are alike. `environments`: each rank's flat facts, variables as `env.NAME`."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for rank, facts in sorted(environments.items()):
        alike.setdefault(_machine(facts), []).append(rank)
    found = []
    for key, ranks in alike.items():
        known = dict(zip((*_WORDS, *_NUMBERS), key, strict=True))
        hosts = dict.fromkeys(str(environments[rank].get("hostname", "?")) for rank in ranks)
        found.append(
            MachineGroup(
                hosts=tuple(hosts),
                ranks=tuple(ranks),
                environment=_shared([environments[rank] for rank in ranks]),
                **known,
            )
        )
    return tuple(found)


def _machine(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is shown of a rank's machine, in the order of _WORDS and _NUMBERS; None for what is not known."""
    words = (facts.get(name) for name in _WORDS)
    numbers = (facts.get(name) for name in _NUMBERS)
    return (
        *(None if word is None else str(word) for word in words),
        *(number if type(number) is int else None for number in numbers),
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
