"""Checks that several parts of a config share. InputError has the key, the value and what would be accepted."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.errors import InputError


def one_of(key: str, value: str, accepted: Sequence[str]) -> None:
    """InputError for a word that is not known."""
    if value not in accepted:
        raise InputError(f"{key}={value}: one of {', '.join(accepted)} is expected")


def at_least(key: str, value: float, least: float) -> None:
    """InputError below `least`, for what is no number, and for one without end."""
    if not least <= value < float("inf"):
        what = f"at least {least:g}" if value < least else f"a finite number from {least:g} on"
        raise InputError(f"{key}={value}: {what} is expected")


def positive(key: str, value: float) -> None:
    """InputError for 0, what is below it, and what is no number."""
    if not 0 < value < float("inf"):
        raise InputError(f"{key}={value}: a positive number is expected")


def check_batches(
    mode: str, world_sizes: Sequence[int], *, batch_per_rank: int, global_batch: int, steps: int
) -> None:
    """InputError where the samples of a step do not divide among ranks and accumulation steps."""
    if mode == "strong":
        for size in world_sizes:
            if global_batch % (size * steps):
                raise InputError(
                    f"global_batch={global_batch}: does not divide by world size {size} x "
                    f"accumulation_steps {steps}; use a multiple"
                )
    elif batch_per_rank % steps:
        raise InputError(
            f"batch_per_rank={batch_per_rank}: does not divide by accumulation_steps={steps}; use a multiple"
        )
