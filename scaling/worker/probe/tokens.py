"""How many tokens a rank's step has, as the loop tells it."""

from __future__ import annotations

import operator
from typing import Any

import torch

MOST = 2**48
"""A rank's step has fewer; a larger number is a mistake, and might not fit into the records."""


def as_count(given: Any) -> int:
    """A number of tokens. ValueError with the reason where it is none; never waits for a device."""
    if isinstance(given, torch.Tensor) and given.device.type != "cpu":
        raise ValueError(
            f"the number is on {given.device}, and the host would wait for it; count before the batch goes there"
        )
    try:
        count = operator.index(given)
    except TypeError:
        raise ValueError(f"a whole number is expected, not {type(given).__name__}") from None
    if not 0 <= count < MOST:
        raise ValueError(f"a number from 0 to 2^48 is expected, not {count}")
    return count
