"""What the ranks ran on, equal ones together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ENVIRONMENT = "env."
OF_ONE_RANK = ("env.TORCHELASTIC_", "env.SLURM_", "env.CUDA_VISIBLE_DEVICES")
"""Variables that differ from rank to rank by their nature, or say nothing of speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hosts and ranks that are alike in everything that is shown; None where a rank did not know."""

    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    """Compute threads a rank."""
    device_name: str | None = None
    device_memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    kernel: str | None = None
    python: str | None = None
    torch: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that have one value on all of them."""


_WORDS = ("cpu", "device_name", "driver", "cuda", "cudnn", "nccl", "kernel", "python", "torch")
_NUMBERS = ("cores", "threads", "device_memory_bytes")


def machines(environments: Mapping[int, Mapping[str, Any]]) -> tuple[Machine, ...]:
    """Rank -> what it wrote down about itself, flat, its variables as `env.NAME`; in the order of the ranks."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for rank, facts in sorted(environments.items()):
        alike.setdefault(tuple(facts.get(name) for name in (*_WORDS, *_NUMBERS)), []).append(rank)
    found = []
    for key, ranks in alike.items():
        facts = dict(zip((*_WORDS, *_NUMBERS), key, strict=True))
        known: dict[str, Any] = {n: None if facts[n] is None else str(facts[n]) for n in _WORDS}
        known |= {n: facts[n] for n in _NUMBERS}
        hosts = dict.fromkeys(str(environments[rank].get("hostname", "?")) for rank in ranks)
        found.append(
            Machine(
                hosts=tuple(hosts),
                ranks=tuple(ranks),
                environment=_shared([environments[rank] for rank in ranks]),
                **known,
            )
        )
    return tuple(found)


def _shared(environments: list[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    first = environments[0]
    return tuple(
        (name.removeprefix(ENVIRONMENT), str(value))
        for name, value in sorted(first.items())
        if name.startswith(ENVIRONMENT)
        and not name.startswith(OF_ONE_RANK)
        and all(other.get(name) == value for other in environments)
    )
